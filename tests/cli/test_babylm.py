"""The BabyLM command: the pipeline's files from a folder of checkpoints, each of which is loaded once."""

import itertools
import json
import math
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lmdyn.analysis import surprisals
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.cli.__main__ import main
from lmdyn.cli.babylm import _partial_r2
from lmdyn.models import PretrainedLM
from tests.helpers.foreign_tokenizers import byte_level, trained

NOUNS, VERBS = ["cat", "dog", "bird", "key", "lamp"], ["runs .", "sleeps .", "sees it ."]
CHOSEN = random.Random(0)


def text():
    return f"the {CHOSEN.choice(NOUNS)} near a {CHOSEN.choice(NOUNS)} {CHOSEN.choice(VERBS)}"


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pair(**more):
    good, bad = f"{text()} yes", f"{text()} no"
    return {"sentence_good": good, "sentence_bad": bad, **more}


def tracked(operations):
    options = [f" the {noun} ." for noun in CHOSEN.sample(NOUNS, 5)]
    return {"input_prefix": f"{text()} Box 1 has", "options": options, "numops": operations}


@pytest.fixture
def data(tmp_path):
    """A small evaluation_data, without EWoK, as for who has no licence, in the full sets."""
    root = tmp_path / "evaluation_data"
    fast, full = root / "fast_eval", root / "full_eval"
    for kind in ("agree", "order"):
        write(fast / "blimp_fast" / f"{kind}.jsonl", [pair(UID=kind) for _ in range(4)])
    write(fast / "supplement_fast" / "hypernym.jsonl", [pair() for _ in range(4)])
    worlds = [
        {"Context1": text(), "Context2": text(), "Target1": text(), "Target2": text(), "Domain": "physical"}
    ]
    write(fast / "ewok_fast" / "physical.jsonl", worlds * 3)
    nothing = {**tracked(0), "options": [" nothing .", *(f" the {noun} ." for noun in NOUNS[1:])]}
    entities = [tracked(0), nothing, tracked(1), tracked(0), tracked(1)]
    write(fast / "entity_tracking_fast" / "regular.jsonl", entities)
    words, rows = ["the", "cat", "near", "a", "dog", "sees", "the", "key", "near", "a", "bird"], []
    for repeated in range(6):
        context = words[repeated:]
        rows += [
            {"item": " ".join(context[:i]), "word": word, "prev_item": " ".join(context[: i - 1]),
             "RTfirstfix": 200 + CHOSEN.random(), "RTgopast": 300 + CHOSEN.random(),
             "self_paced_reading_time": 250 + CHOSEN.random(), "Subtlex_log10": CHOSEN.random(),
             "length": len(word), "context_length": i}
            for i, word in enumerate(context) if i
        ]  # fmt: skip
    (fast / "reading").mkdir()
    pd.DataFrame(rows).to_csv(fast / "reading" / "reading_data.csv", index=False)
    write(full / "blimp_filtered" / "agree.jsonl", [pair(UID="agree") for _ in range(6)])
    write(full / "entity_tracking" / "regular.jsonl", [tracked(0), tracked(1), tracked(1)])
    write(full / "entity_tracking" / "ambiref.jsonl", [tracked(0)])
    contexts = {"dog": [{"context": "the cat near a"}, {"context": "a"}], "a": [{"context": "the cat near"}]}
    (full / "aoa").mkdir()
    (full / "aoa" / "cdi_childes.json").write_text(json.dumps(contexts))
    comps = {"prefix_acceptable": "the bird", "prefix_unacceptable": "the key", "property_phrase": "sleeps ."}
    write(full / "comps" / "comps_base.jsonl", [comps] * 2)
    return root


@pytest.fixture
def checkpoints(tmp_path):
    """A folder as transformers' Trainer and the challenge's callback leave it."""
    tokenizer = byte_level([text() for _ in range(50)], bos_token="<s>")
    for seed, name in enumerate(["chck_1M", "chck_2M", "chck_10M"]):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / "small.v1" / name)
        tokenizer.save_pretrained(tmp_path / "small.v1" / name)
    return tmp_path / "small.v1"


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_files_of_the_pipeline(data, checkpoints, tmp_path, monkeypatch, capsys):
    loads = []
    reads = {"lmdyn.cli.replay.read_ahead.read_stored": 0, "lmdyn.models.pretrained.load_model": 1}
    for name, place in reads.items():  # of the arguments, the one that is the folder
        real = dotted(name)
        monkeypatch.setattr(
            name, lambda *a, place=place, real=real, **k: loads.append(Path(a[place])) or real(*a, **k)
        )
    out = tmp_path / "results"
    main(["babylm", str(checkpoints), "--data", str(data), "--out", str(out), "--device", "cpu"])
    assert sorted(p.name for p in loads) == ["chck_10M", "chck_1M", "chck_2M"]  # one load a checkpoint
    folder = out / "small"  # the pipeline cuts a name at its last dot
    found = {str(p.parent.relative_to(folder)) for p in folder.rglob("predictions.json")}
    fast = [
        "blimp/blimp_fast",
        "blimp/supplement_fast",
        "ewok/ewok_fast",
        "entity_tracking/entity_tracking_fast",
    ]
    full = ["blimp/blimp_filtered", "entity_tracking/entity_tracking", "comps/comps"]
    assert found == {
        *(f"{name}/zero_shot/causal/{of}" for name in ("chck_1M", "chck_2M", "chck_10M") for of in (*fast, "reading")),
        *(f"main/zero_shot/causal/{of}" for of in full),
    }  # fmt: skip
    # by hand: the first token is never scored, so that nothing precedes the text
    module = PretrainedLM(name=str(checkpoints / "chck_2M")).eval()
    rows = [json.loads(line) for line in (data / "fast_eval/blimp_fast/agree.jsonl").read_text().splitlines()]
    pairs = [row[key] for row in rows for key in ("sentence_good", "sentence_bad")]
    sums = surprisals(module, module.tokenizer, pairs, start="").groupby("text")["log_probability"].sum()
    better = [pairs[i] if sums[i] > sums[i + 1] else pairs[i + 1] for i in range(0, 8, 2)]
    place = folder / "chck_2M/zero_shot/causal/blimp/blimp_fast"
    assert read(place / "predictions.json")["agree"]["predictions"] == [
        {"id": f"agree_{i}", "pred": pred} for i, pred in enumerate(better)
    ]
    right = 100 * sum(pred.endswith("yes") for pred in better) / 4
    assert f"agree: {right:.2f}" in (place / "best_temperature_report.txt").read_text().splitlines()
    entities = read(folder / "chck_1M/zero_shot/causal/entity_tracking/entity_tracking_fast/predictions.json")
    assert {uid: len(of["predictions"]) for uid, of in entities.items()} == {
        "regular_0_ops": 2,
        "regular_1_ops": 2,
    }
    assert entities["regular_0_ops"]["predictions"][0]["pred"].startswith(" the ")
    worlds = read(folder / "chck_1M/zero_shot/causal/ewok/ewok_fast/predictions.json")
    assert " near a " in worlds["physical"]["predictions"][0]["pred"].split(" . ")[0]  # context and target
    whole = read(folder / "all_full_preds_and_fast_scores_causal.json")
    assert whole["ewok"] is None  # no data: counts 0
    assert whole["aoa"] is None
    assert [len(of) for of in whole["fast_eval_results"].values()] == [3] * 5
    assert whole["fast_eval_results"]["ewok"] == [{"physical": 0.0}] * 3  # the collator's fault
    assert whole["comps"]["base"]["predictions"][0]["pred"] in {"the bird sleeps .", "the key sleeps ."}
    scores = pd.read_csv(folder / "scores_causal.csv", keep_default_na=False, na_values=[""])
    of_ewok = scores[scores["data"].eq("ewok_fast") & scores["group"].isna()]
    assert of_ewok["exact"].between(0, 1).all()
    assert len(of_ewok) == 3
    missing = set(re.findall(r"lmdyn leaves out (\w+)", capsys.readouterr().err))
    assert missing == {"supplement_filtered", "ewok_filtered"}
    # again: the first one is loaded to build the model
    loads.clear()
    main(["babylm", str(checkpoints), "--data", str(data), "--out", str(out), "--device", "cpu"])
    assert [p.name for p in loads] == ["chck_1M"]
    assert read(folder / "all_full_preds_and_fast_scores_causal.json") == whole
    # a later checkpoint: the full sets are its own, and not those of the last one before
    shutil.copytree(checkpoints / "chck_2M", checkpoints / "chck_20M")
    main(["babylm", str(checkpoints), "--data", str(data), "--out", str(out), "--device", "cpu"])
    scores = pd.read_csv(folder / "scores_causal.csv")
    assert not scores.duplicated(["checkpoint", "data", "group"]).any()
    assert set(scores["checkpoint"]) == {"chck_1M", "chck_2M", "chck_10M", "chck_20M", "main"}


@pytest.mark.slow
def test_reading_in_nats_with_the_word_before(data, checkpoints, tmp_path):
    main(
        [
            "babylm",
            str(checkpoints),
            "--data",
            str(data),
            "--out",
            str(tmp_path / "results"),
            "--device",
            "cpu",
        ]
    )
    rows = read(tmp_path / "results/small/chck_2M/zero_shot/causal/reading/predictions.json")["reading"][
        "predictions"
    ]
    module = PretrainedLM(name=str(checkpoints / "chck_2M")).eval()
    pieces = surprisals(module, module.tokenizer, ["the cat near a dog"], start="")
    words = pieces.groupby("word_index")["log_probability"].sum() * -1
    assert [row["pred"] for row in rows[:3]] == pytest.approx(words.iloc[1:4].tolist(), rel=1e-4)
    assert math.isnan(rows[0]["prev_pred"])
    assert rows[1]["prev_pred"] == rows[0]["pred"]


def spillover_r2(data, said):
    """The protocol's score of self-paced reading: words whose previous word has no row of its own are left out."""
    rows = pd.read_csv(data / "fast_eval/reading/reading_data.csv")
    of = pd.DataFrame(said["reading"]["predictions"])
    x = rows[["Subtlex_log10", "length", "context_length"]].assign(
        length_before=rows["item"].str.split().str[-1].str.len(), before=of["prev_pred"]
    )
    kept = (of["prev_pred"].notna() & of["pred"].notna()).to_numpy()
    assert 0 < kept.sum() < len(rows)
    x, y = x[kept].to_numpy(float), rows["self_paced_reading_time"][kept].to_numpy()
    design = np.column_stack([np.ones(len(x)), x, *(a * b for a, b in itertools.combinations(x.T, 2))])

    def left(columns):
        return ((y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]) ** 2).sum()

    return 1 - left(np.column_stack([design, of["pred"][kept]])) / left(design)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mlm", "mntp"])
def test_masked_models_need_one_form(data, tmp_path, backend):
    tokenizer = trained("wordpiece")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), **sizes, max_position_embeddings=64)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    out = tmp_path / "results"
    main(["babylm", str(tmp_path / "bert"), "--data", str(data), "--out", str(out), "--backend", backend])
    place = out / "bert" / "main" / "zero_shot" / backend
    assert {p.name for p in place.iterdir()} == {
        "AoA_word",
        "blimp",
        "comps",
        "entity_tracking",
        "ewok",
        "reading",
    }
    found = read(out / "bert" / f"all_full_preds_and_fast_scores_{backend}.json")["fast_eval_results"]
    assert found["reading"][0]["spr"] == pytest.approx(
        spillover_r2(data, read(place / "reading/predictions.json"))
    )
    settings = yaml.safe_load((out / "bert" / f"observers_{backend}.yaml").read_text())
    assert not any("exact" in entry["init_args"]["name"] for entry in settings["trainer"]["callbacks"])


@pytest.mark.slow
def test_encoder_decoders(data, tmp_path):
    tokenizer = trained("wordpiece")
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    for backend in ("enc_dec_mask", "enc_dec_prefix"):
        main(
            [
                "babylm",
                str(tmp_path / "t5"),
                "--data",
                str(data),
                "--out",
                str(tmp_path),
                "--backend",
                backend,
            ]
        )
        zero_shot = tmp_path / "t5/main/zero_shot"
        assert (zero_shot / backend / "blimp/blimp_filtered/predictions.json").is_file()
        assert (zero_shot / backend / "AoA_word/surprisal.json").is_file()
    said = read(zero_shot / "enc_dec/reading/predictions.json")["reading"]["predictions"]
    assert all(row["pred"] > 0 for row in said)  # the folder in which the pipeline writes them


def test_a_model_that_has_diverged_has_no_score_of_reading(caplog):
    assert math.isnan(_partial_r2([200.0, 210.0, 190.0], [math.nan] * 3, [[3.0], [4.0], [5.0]]))
    assert "the exact score of reading times is NaN" in caplog.text


def test_contexts_of_another_layout(data, checkpoints, tmp_path, capsys):
    path = data / "full_eval" / "aoa" / "cdi_childes.json"
    path.write_text('{"dog": ["a"]}')
    with pytest.raises(SystemExit):
        main(["babylm", str(checkpoints), "--data", str(data), "--out", str(tmp_path / "results")])
    assert f"{path}: expected {{word: [" in capsys.readouterr().err


def test_without_data(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("BABYLM_DATA", raising=False)
    with pytest.raises(SystemExit):
        main(["babylm", str(tmp_path)])
    assert "give --data, or set BABYLM_DATA" in capsys.readouterr().err

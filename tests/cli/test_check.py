"""``lmdyn check`` on copies of shipped configurations: what a test breaks is found in one line; the rest passes."""

import dataclasses
import json

import pytest
import torch
import yaml
from transformers import AlbertConfig, AlbertModel

from lmdyn.analysis.inspection.activations import observing
from lmdyn.callbacks import DiagnosticProbe, Run, Similarity
from lmdyn.callbacks.observing import findings as finding
from lmdyn.callbacks.observing.probe import probe_pass
from lmdyn.callbacks.observing.requirements import foresee
from lmdyn.callbacks.training.lightning_internals import tree_leaves
from lmdyn.cli.__main__ import main
from lmdyn.cli.building import build
from lmdyn.cli.check import check_replay, check_training
from tests import test_configs as shipped

beginnings, in_tmp = shipped.beginnings, shipped.in_tmp  # fixtures
# what is on the hub is checked, and run, by tests/test_paper_profiles.py
BASES = [p for p in shipped.EXPERIMENTS if p.name != "initial.yaml" and not shipped.from_the_hub(p)]
KINDS = (
    "saphra2019_svcca/organism/tagger_same",
    "chiang2020_embryology/organism/lm",
    "he2022_twotower/organism/lm",
)
OF_EACH_KIND = [shipped.ROOT / "configs" / f"{name}.yaml" for name in ("quickstart", *KINDS)]


def with_its_data(path):
    marks = [pytest.mark.realdata, shipped.WITHOUT_DATA] if shipped.real_text(path) else []
    return pytest.param(path, marks=marks)


def arguments(path, folder, *more):
    """The arguments of ``fit`` for a small copy, one that keeps weights for a replay to look at."""
    kept = ["--trainer.enable_checkpointing=true", "--trainer.callbacks+=ScheduledCheckpoint"]
    more = (*more, *(kept if shipped.live(path) else []))
    return [
        *shipped.small_files_of(path, folder), *shipped.small_arguments(path), *shipped.own_vocabulary(path),
        *shipped.in_place_of_the_hub(path, folder), *more,
    ]  # fmt: skip


def overlay(folder, *callbacks):
    file = folder / "overlay.yaml"
    file.write_text(yaml.safe_dump({"trainer": {"callbacks": list(callbacks)}}), encoding="utf-8")
    return str(file)


def observer(cls, **arguments):
    return {"class_path": cls, "init_args": arguments}


def errors(lines):
    return [str(line) for line in lines if line.verdict == "error"]


OF_TAGS = "but LSTMTagger returns 15 classes"


def a_break(built, args, folder, callback):
    """The one line that is told of an observer."""
    (line,) = errors(check_replay(built, args, [overlay(folder, callback)]))
    assert "\n" not in line
    return line


@pytest.mark.slow
@pytest.mark.parametrize("path", [with_its_data(p) for p in BASES], ids=shipped.name)
def test_each_shipped_configuration_passes(path, in_tmp):
    lines, built = check_training(arguments(path, in_tmp))
    assert errors(lines) == []
    assert built is not None


@pytest.mark.slow
@pytest.mark.parametrize("path", OF_EACH_KIND, ids=shipped.name)
def test_breaks_are_found(path, in_tmp, monkeypatch):
    args = arguments(path, in_tmp)
    _, built = check_training(args)
    tags = "Tagger" in str(built.module)  # its logits are of tags
    curves = observer("LearningCurves", bands=[], layers=[])
    found = errors(check_replay(built, args, [overlay(in_tmp, curves)]))
    assert [OF_TAGS in line for line in found] == [True] * tags  # the control
    nowhere = observer("Similarity", sites={"h": "no.such.site"}, measures=["linear_cka"])
    assert "no.such.site" in a_break(built, args, in_tmp, nowhere)
    towers = observer("TowerPreference", sites={"a": "encodings.7", "b": "encodings.8"})
    assert "tower_preference" in a_break(built, args, in_tmp, towers)
    missing = observer("Similarity", reference=observer("Checkpoint", path="runs/nobody"))
    assert "runs/nobody" in a_break(built, args, in_tmp, missing)
    few = observer("Sparsity", pos_classes=False, min_count=10**6, frequency="probe")
    rows = a_break(built, args, in_tmp, few)
    assert (OF_TAGS if tags else "expected 3 words of 1000000 occurrences") in rows
    counted = observer("Sparsity", frequency="train", pos_classes=False)
    stream = dataclasses.replace(built, counts=None)
    assert "requires training frequencies" in a_break(stream, args, in_tmp, counted)
    headless = f"--model={{class_path: PretrainedLM, init_args: {{name: {a_headless_model(in_tmp)}}}}}"
    data = [word for word in args if not word.startswith("--model.")]
    (lacks,) = errors(check_training([*data, headless])[0])
    assert "lm_head" in lacks or "headless" in lacks
    with monkeypatch.context() as small:
        small.setattr(finding, "free_memory", lambda device: 1000)
        found = errors(check_training(args)[0])
        assert any("of memory" in line and "1000 B free on the host" in line for line in found)


def quickstart(folder, *more):
    return arguments(shipped.BASE, folder, *more)


@pytest.mark.slow
def test_too_few_rows(in_tmp):
    few = quickstart(in_tmp, "--data.init_args.n_validation_tokens=12")
    probe = observer("DiagnosticProbe", tasks=["upos"], train_tokens=10**7)
    built = build(few)
    words = {"class_path": "Sparsity", "init_args": {"pos_classes": False, "min_count": 50}}
    assert "expected 3 words of 50 occurrences in the probe set" in a_break(built, few, in_tmp, words)
    lines = check_replay(built, few, [overlay(in_tmp, probe)])
    warned = [str(line) for line in lines if line.verdict == "warning"]
    assert any("expected 10,000,000 tokens to train on" in line for line in warned)
    exact = {"class_path": "Similarity", "init_args": {"measures": ["cca"], "max_tokens": 4}}
    assert "expected more than 8 tokens for sites of 4 and 4 dimensions" in a_break(built, few, in_tmp, exact)
    pairs = {"class_path": "Interdependence", "init_args": {"min_pairs": 10**6}}
    lines = check_replay(built, few, [overlay(in_tmp, pairs)])
    assert any("expected 1000000 pairs of words at each distance" in str(line) for line in lines)


def a_headless_model(folder):
    sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "intermediate_size": 4}
    AlbertModel(AlbertConfig(**sizes, num_attention_heads=1)).save_pretrained(folder / "headless")
    return folder / "headless"


def test_command(in_tmp, capsys, caplog):
    args = quickstart(in_tmp)
    main(["check", *args, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {line["verdict"] for line in told} <= {"ok", "warning"}
    with pytest.raises(SystemExit, match="1"):
        main(["check", *args, "--trainer.callbacks+=Similarity", "--trainer.callbacks.sites={h: nowhere}"])
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert errors[0].startswith("error: fit: similarity: site 'h': LSTMLanguageModel has no module 'nowhere'")
    assert not list(in_tmp.glob("runs"))


def test_foreseen_memory_is_what_is_held(in_tmp):
    """Features within a twentieth, covariances within a factor of 2."""
    built = build(quickstart(in_tmp))
    run = Run(built.folder, built.tokenizer, built.counts, built.data)
    tasks = {"tasks": ["upos"], "train_tokens": 2000, "max_tokens": 500}
    found = foresee(DiagnosticProbe(**tasks), built.module, run=run)
    (cost,) = found.costs
    probe = found.observer
    with observing(built.module):
        parts = [probe._features(built.module, part) for part in (probe._train_set, probe.probe_set)]
    held = sum(x.numel() * x.element_size() for part in parts for x in part.activations.values())
    assert cost.memory == pytest.approx(2 * held, rel=0.05)
    found = foresee(Similarity(measures=["linear_cka"], jackknife=8, max_tokens=800), built.module, run=run)
    cost, _ = found.costs  # and a batch
    compared = found.observer
    watch = compared.watch(built.module, 0)
    with observing(built.module):
        probe_pass(built.module, compared.probe_set, [watch])
    sums = [c._sums for _, of in watch.consumer._sums.of("covariances") for c in of._parts.values()]
    leaves = [leaf for one in sums for leaf in tree_leaves(vars(one)) if isinstance(leaf, torch.Tensor)]
    held = sum(x.numel() * x.element_size() for x in leaves)
    assert held / 2 <= cost.memory <= 2 * held

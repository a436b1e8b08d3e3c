"""Similarity against the functions of lmdyn.analysis on activations that are gathered by hand."""

import copy
import math

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForMaskedLM

import lmdyn.analysis as analysis
from lmdyn.callbacks import (
    Checkpoint,
    Earlier,
    Itself,
    OwnFinal,
    OwnInitial,
    Previous,
    Reference,
    Run,
    Similarity,
)
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.token_groups import sentence_numbers, token_hash
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.models import LSTMLanguageModel, LSTMTagger
from tests.helpers.refusals import assert_refused

V = 30
EOS = 2


def language_model(seed=0, size=6):
    torch.manual_seed(seed)
    return LSTMLanguageModel(vocab_size=V, embedding_size=size, hidden_size=size, num_layers=2)


def tagger(seed=7, size=5):
    torch.manual_seed(seed)
    return LSTMTagger("upos", vocab_size=V, num_labels=4, embedding_size=size, hidden_size=size)


def save(module, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {**module.hparams, "_class_path": f"{type(module).__module__}.{type(module).__name__}"}
    torch.save({"state_dict": module.state_dict(), "hyper_parameters": dict(about)}, path)
    return str(path)


def batches(n=4, rows=5, time=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    found = []
    for i in range(n):
        ids = torch.randint(EOS, V, (rows, time + 1), generator=g)
        mask = torch.ones(rows, time, dtype=torch.long)
        mask[0, -2:] = 0
        batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].masked_fill(mask == 0, -100)}
        found.append({**batch, "attention_mask": mask, "continues": torch.full((rows,), i > 0)})
    return found


def attach(observer, folder, probe=None, **run):
    observer.probe = batches() if probe is None else probe
    observer.attach(Run(folder, word_tokenizer({f"w{i}": 1 for i in range(V - 3)}), **run))
    return observer


def gathered(module, probe):
    """Activations at all tokens, by hand: the recurrence written out with the module's own layers."""
    module.eval()
    found = {"embedding": [], **{f"h{i + 1}": [] for i in range(len(module.lstm.layers))}}
    state = None
    with torch.no_grad():
        for batch in probe:
            x, after = module.embedding(batch["input_ids"]), []
            found["embedding"].append(x[batch["attention_mask"] == 1])
            for i, layer in enumerate(module.lstm.layers):
                x, last = layer(x, None if state is None else state[i])
                found[f"h{i + 1}"].append(x[batch["attention_mask"] == 1])
                after.append(last)
            state = after
    return {name: torch.cat(parts) for name, parts in found.items()}


def saved(folder, steps):
    """Checkpoints of a model at each step, whose weights the step tells."""
    paths = {step: folder / f"checkpoints/step={step:09d}.ckpt" for step in steps}
    for step, path in paths.items():
        save(language_model(step), path)
    return paths


ATTENTION = {"a": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"}


def albert(seed=0, layers=2):
    torch.manual_seed(seed)
    config = AlbertConfig(
        vocab_size=V, embedding_size=8, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, initializer_range=0.7,
    )  # fmt: skip
    return AlbertForMaskedLM(config).eval()


class Made(Reference):
    """What is made of the module that is observed."""

    def __init__(self, make):
        self._make = make

    def modules(self, module, run, step):
        return {"": self._make(module)}


def value(table, quantity, site, reference_site=None, reference=None):
    rows = table[table["quantity"].eq(quantity) & table["site"].eq(site)]
    for column, wanted in (("reference_site", reference_site), ("reference", reference)):
        rows = rows if wanted is None else rows[rows[column].eq(wanted)]
    assert len(rows) == 1, rows
    return float(rows["value"].iloc[0])


ALL = ["cca", "svcca", "pwcca", "linear_cka", "debiased_linear_cka", "procrustes", "kernel_cka", "rsa"]


def test_values_are_those_of_the_functions(tmp_path):
    module, other = language_model(), tagger()
    observer = Similarity(reference={"upos": Checkpoint(save(other, tmp_path / "t.ckpt"))}, measures=ALL)
    table = attach(observer, tmp_path).observe(module, 3)
    x, y = gathered(module, batches()), gathered(other, batches())
    pairs = [("embedding", "embedding"), ("h1", "h1"), ("h2", "h1")]  # the tagger has one layer
    values = table[table["quantity"].isin(ALL)]
    assert list(zip(values["site"], values["reference_site"], strict=True))[:: len(ALL)] == pairs
    for site, their in pairs:
        for measure in ALL:
            name, debiased = measure.removeprefix("debiased_"), measure.startswith("debiased_")
            more = {"debiased": True} if debiased else {}
            expected = float(getattr(analysis, name)(x[site], y[their], **more))
            # n × n measures add up in another order
            assert value(table, measure, site, their, "upos") == pytest.approx(expected, abs=1e-9)
    assert set(table["step"]) == {3}


def test_own_past_and_end(tmp_path):
    paths = saved(tmp_path / "run", (0, 4, 9))
    models = {step: language_model(step) for step in paths}
    references = {"end": OwnFinal(), "before": Previous(), "past": Earlier(), "some": Earlier(at=[4])}
    observer = attach(Similarity(reference=references), tmp_path, checkpoints=paths)
    tables = {step: observer.observe(model, step) for step, model in models.items()}
    x = {step: gathered(model, batches()) for step, model in models.items()}
    assert set(tables[0]["reference"]) == {"end"}
    assert set(tables[9]["reference"]) == {"end", "before", "past step 0", "past step 4", "some step 4"}
    assert value(tables[9], "svcca", "h2", reference="end") == pytest.approx(1, abs=1e-9)
    for step, reference, other in ((4, "before", 0), (9, "before", 4), (9, "past step 0", 0), (4, "end", 9)):
        expected = float(analysis.svcca(x[step]["h2"], x[other]["h2"]))
        assert value(tables[step], "svcca", "h2", reference=reference) == pytest.approx(expected, abs=1e-9)


def test_refused_settings():
    assert_refused(
        Similarity,
        (
            {"measures": ["svca"]},
            r"unknown measure svca, did you mean 'svcca'.*\? expected one of cca, svcca",
        ),
        (
            {"measures": ["svcca_x"]},
            r"unknown measure svcca_x, did you mean .* expected one of cca, .*svcca_<k>",
        ),
        ({"sites": {"": "h1"}}, "sites has the key '': expected"),
        ({"reference_sites": {"a": "h1"}}, "does not support `reference_sites`"),
        ({"reference": {}}, "expected at least one reference, got none: set `reference`"),
        ({"reference": {"": Earlier()}}, "reference name ''"),
        ({"jackknife": 3}, "expected 5 to 64 blocks .exactly 64 with `bootstrap`"),
        ({"jackknife": 5, "bootstrap": 5}, "expected 5 to 64 blocks .exactly 64 with `bootstrap`"),
    )


@pytest.mark.parametrize("reference", [OwnFinal, Previous, Earlier])
def test_references_that_a_run_does_not_have(reference, tmp_path):
    with pytest.raises(ValueError, match=r"replay this observer|attach a ScheduledCheckpoint"):
        attach(Similarity(reference=reference()), tmp_path)


def test_refused_sites(tmp_path):
    other = Checkpoint(save(tagger(), tmp_path / "t.ckpt"))
    assert_refused(
        lambda **settings: attach(Similarity(reference=other, **settings), tmp_path).bind(language_model()),
        ({"pairs": [["h2", "h2"]]}, "reference 'checkpoint' has no site 'h2': choose among embedding, h1"),
        ({"pairs": [["no", "h1"]]}, "this model has no site 'no'"),
        ({"sites": {"h2": "lstm.layers.1"}}, r"none of the sites.*reference_sites.*lstm.layers.0"),
    )


def test_refused_checkpoints(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoints"):
        attach(Similarity(reference=Checkpoint(str(tmp_path / "nothing"))), tmp_path)
    other = Checkpoint(save(tagger(), tmp_path / "run/checkpoints/t.ckpt"))
    words = word_tokenizer({f"other{i}": 1 for i in range(V)})
    words.save_pretrained(str(tmp_path / "run/tokenizer"))
    with pytest.raises(ValueError, match=r"another tokenizer.*data.init_args.tokenizer"):
        attach(Similarity(reference=other), tmp_path)


class Odd(nn.Module):
    """A site that is shorter than the text."""

    def __init__(self):
        super().__init__()
        self.fine, self.short = nn.Identity(), nn.Identity()
        self.embedding = nn.Embedding(V, 4)

    def forward(self, input_ids):
        x = self.fine(self.embedding(input_ids))
        self.short(x[:, 1:])
        return x


def test_another_length_is_an_error(tmp_path):
    observer = Similarity(reference=Itself(), sites={"fine": "fine", "short": "short"})
    with pytest.raises(ValueError, match=r"site 'short' of this model returns \(5, 8, 4\).*\(5, 9\)"):
        attach(observer, tmp_path).observe(Odd(), 0)


# ---------------------------------------------------------------- sentences, samples, intervals


def seen(batch, rows, start):
    labels = batch["labels"]
    return ObservedBatch(batch, torch.zeros(*labels.shape, 1), rows, torch.full((len(labels),), start))


def test_sentences_are_counted_on_through_the_stream():
    ids = torch.tensor([[5, 2, 6, 7], [5, 6, 7, 2]])
    first = seen({"input_ids": ids, "labels": ids}, torch.arange(2), 0)
    numbers, last = sentence_numbers(first, [2], None)
    assert numbers.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    second = seen({"input_ids": ids, "labels": ids}, torch.arange(2), 4)
    assert sentence_numbers(second, [2], last)[0].tolist() == [[1, 1, 2, 2], [1, 1, 1, 1]]
    assert sentence_numbers(first, [], None)[0].sum() == 0


def test_token_hashes_depend_on_the_token_only():
    ids = torch.zeros(4, 6, dtype=torch.long)
    whole = token_hash(seen({"labels": ids}, torch.arange(4), 0), 3)
    later = token_hash(seen({"labels": ids[1::2, 2:]}, torch.arange(4)[1::2], 2), 3)
    assert torch.equal(whole[1::2, 2:], later)
    assert len(whole.unique()) == whole.numel()
    assert (whole >= 0).all()
    assert not torch.equal(whole, token_hash(seen({"labels": ids}, torch.arange(4), 0), 4))
    many = token_hash(seen({"labels": torch.zeros(200, 500)}, torch.arange(200), 0), 0)
    counts = torch.bincount(many.flatten() % 64, minlength=64).double()
    assert float(((counts - 1562.5) ** 2 / 1562.5).sum()) < 110  # χ² of 63 degrees: 110 has p = 0.0003


class Streams(list):
    """Batches whose rows are streams, as those of a StreamLoader."""

    def shard(self, rank, world_size):
        return iter(self)


# ---------------------------------------------------------------- attention


def test_attention_divergences(tmp_path):
    model, twin = albert(), albert(1)
    references = {"same": Made(copy.deepcopy), "other": Made(lambda module: twin), "itself": Itself()}
    observer = Similarity(reference=references, sites={}, attention_sites=ATTENTION, measures=[])
    table = attach(observer, tmp_path).observe(model, 0)
    between = table[table["reference"].eq("itself")]
    assert set(zip(between["site"], between["reference_site"], strict=True)) == {("a@0", "a@1")}
    assert (between["value"] > 0).all()
    assert set(table["site"]) == {"a@0", "a@1"}
    assert (table[table["reference"].eq("same")]["value"] == 0).all()
    for layer in (0, 1):
        js, kl, n = 0.0, 0.0, 0
        for batch in batches():
            p, q = (
                m.set_attn_implementation("eager")
                or m(batch["input_ids"], attention_mask=batch["attention_mask"], output_attentions=True)
                .attentions[layer].detach().double().mean(1)
                for m in (model, twin)
            )  # fmt: skip
            for b, t in batch["attention_mask"].nonzero().tolist():
                pairs = [(float(u), float(v)) for u, v in zip(p[b, t], q[b, t], strict=True) if u > 0]
                kl += sum(u * math.log(u / v) for u, v in pairs)
                js += sum(
                    (u * math.log(2 * u / (u + v)) + (v * math.log(2 * v / (u + v)) if v else 0)) / 2
                    for u, v in pairs
                )
                n += 1
        for name, total in (("kullback_leibler", kl), ("jensen_shannon", js)):
            found = value(table, f"attention_{name}", f"a@{layer}", reference="other")
            assert found == pytest.approx(total / n)
        assert kl > 0


# ---------------------------------------------------------------- what an attack found


def test_the_past_of_a_module_that_keeps_its_loss(tmp_path):
    saved(tmp_path, [0])
    module = language_model(1)
    module.last = module.kept = [module(batches()[0]["input_ids"]).logits.sum()]  # with its graph
    observer = attach(Similarity(reference=Previous()), tmp_path, checkpoint_folder=tmp_path / "checkpoints")
    assert value(observer.observe(module, 3), "svcca", "h1") < 1
    assert module.last[0].grad_fn is not None


def test_previous_is_the_run_s_own_whichever_checkpoints_are_looked_at(tmp_path):
    paths, tables = saved(tmp_path, (0, 2, 4)), []
    for some in (paths, {0: paths[0], 4: paths[4]}):
        run = {"checkpoints": some, "checkpoint_folder": tmp_path / "checkpoints"}
        observer = attach(Similarity(reference=Previous()), tmp_path, **run)
        tables.append(observer.observe(language_model(4), 4))
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_too_little_to_look_at(tmp_path, caplog):
    module = language_model(size=12)
    with pytest.raises(ValueError, match="Itself requires two sites"):
        attach(Similarity(reference=Itself(), sites={"h1": "lstm.layers.0"}), tmp_path).observe(module, 0)
    few = [{k: v[:1] for k, v in batches(n=1)[0].items()}]
    observer = Similarity(reference=Itself(), bootstrap=5, measures=["svcca", "linear_cka"])
    table = attach(observer, tmp_path, probe=few).observe(module, 0)
    assert table[table["quantity"].str.endswith(("low", "high"))]["value"].isna().all()
    assert "expected at least 5 blocks of sentences" in caplog.text
    assert caplog.text.count("correlations are 1 for any data") == 1


def test_a_reference_of_another_vocabulary(tmp_path):
    torch.manual_seed(0)
    small = LSTMTagger("upos", vocab_size=9, num_labels=4, embedding_size=5, hidden_size=5)
    observer = attach(Similarity(reference=Checkpoint(save(small, tmp_path / "s.ckpt"))), tmp_path)
    with pytest.raises(ValueError, match="does not know all tokens or positions"):
        observer.observe(language_model(), 0)


# ---------------------------------------------------------------- equal ranks, floors, jackknife


def test_a_number_of_directions_and_the_ranks_of_a_share(tmp_path):
    module, other = language_model(), tagger()
    path = save(other, tmp_path / "t.ckpt")
    observer = Similarity(reference={"upos": Checkpoint(path)}, measures=["svcca", "svcca_3"])
    table = attach(observer, tmp_path).observe(module, 3)
    x, y = gathered(module, batches()), gathered(other, batches())
    for site, their in (("embedding", "embedding"), ("h1", "h1"), ("h2", "h1")):
        expected = float(analysis.svcca(x[site], y[their], directions=3))
        assert value(table, "svcca_3", site, their) == pytest.approx(expected, abs=1e-9)
        assert value(table, "svcca", site, their) != pytest.approx(expected, abs=1e-3)
        ranks = tuple(value(table, quantity, site, their) for quantity in ("rank", "reference_rank"))
        assert ranks == analysis.svcca_ranks(x[site], y[their])
    assert "rank" not in set(attach(Similarity(measures=["cca"]), tmp_path).observe(module, 3)["quantity"])


def test_more_directions_than_there_are_have_no_value(tmp_path, caplog):
    other = save(language_model(1), tmp_path / "o.ckpt")
    observer = Similarity(reference=Checkpoint(other), measures=["svcca_6", "svcca_7"], jackknife=5)
    table = attach(observer, tmp_path).observe(language_model(), 0)
    assert 0 < value(table, "svcca_6", "h1") < 1
    for quantity in ("svcca_7", "svcca_7_corrected", "svcca_7_error"):
        assert math.isnan(value(table, quantity, "h1"))
    assert any("has the numerical rank 6" in m for m in caplog.messages)


def test_the_jackknife_is_that_of_the_blocks(tmp_path):
    """Against leaving out the sentences of each block by hand."""
    module, other = language_model(), language_model(1)
    path = save(other, tmp_path / "o.ckpt")
    probe = Streams(batches(n=8))
    observer = Similarity(reference=Checkpoint(path), measures=["cca", "svcca_3"], jackknife=5)
    table = attach(observer, tmp_path, probe).observe(module, 0)
    text = {key: torch.cat([b[key] for b in probe], 1) for key in ("input_ids", "labels", "attention_mask")}
    x, y = (m.embedding(text["input_ids"]).detach() for m in (module, other))
    mask, whole = text["attention_mask"] == 1, seen(text, torch.arange(5), 0)
    block = token_hash(whole, 0, sentence_numbers(whole, [EOS], None)[0]) % 64 * 5 // 64
    assert len(block.unique()) == 5
    sizes = [int((mask & (block == j)).sum()) for j in range(5)]
    for measure, of in (("cca", analysis.cca), ("svcca_3", lambda a, b: analysis.svcca(a, b, directions=3))):
        left = [float(of(x[mask & (block != j)], y[mask & (block != j)])) for j in range(5)]
        expected = analysis.jackknife(float(of(x[mask], y[mask])), left, sizes)
        corrected = pytest.approx(float(expected.value), abs=1e-9)
        assert value(table, f"{measure}_corrected", "embedding") == corrected
        assert value(table, f"{measure}_error", "embedding") == pytest.approx(float(expected.error), rel=1e-6)
        assert value(table, f"{measure}_corrected", "embedding") < value(table, measure, "embedding")


def test_floors_are_untrained_models(tmp_path):
    models = {step: language_model(step + 3) for step in (0, 6)}
    for step, model in models.items():
        save(model, tmp_path / f"run/checkpoints/step={step:09d}.ckpt")
    run = {"checkpoint_folder": tmp_path / "run/checkpoints"}
    own = str(tmp_path / "run")
    references = {"own": OwnInitial(), "first": Checkpoint(own, step=0), "last": Checkpoint(own)}
    observer = attach(Similarity(reference=references, measures=["cca"]), tmp_path, **run)
    table = observer.observe(copy.deepcopy(models[6]), 6)
    assert value(table, "cca", "h1", "h1", "own") == value(table, "cca", "h1", "h1", "first") < 0.99
    assert value(table, "cca", "h1", "h1", "last") == pytest.approx(1, abs=1e-9)  # the control
    # itself is no floor of itself
    assert set(observer.observe(models[0], 0)["reference"]) == {"first", "last"}
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 3, only of 0, 6"):
        attach(Similarity(reference=Checkpoint(str(tmp_path / "run"), step=3)), tmp_path)
    (tmp_path / "run/checkpoints/step=000000000.ckpt").unlink()
    with pytest.raises(ValueError, match=r"step 0, got steps \[\].*ScheduledCheckpoint"):
        attach(Similarity(reference=OwnInitial()), tmp_path, **run).observe(models[6], 6)


@pytest.mark.parametrize("jackknife", [0, 8])
def test_all_pairs_of_sites_are_as_each_pair_alone(tmp_path, jackknife):
    """Together they have one matrix of sums; pairs that are named have one each."""
    tables = []
    for pairs in (None, [("embedding", "h1"), ("embedding", "h2"), ("h1", "h2")]):
        observer = Similarity(
            pairs=pairs, measures=["svcca", "pwcca", "linear_cka"], jackknife=jackknife, labels="aligned",
            name="named" if pairs else "all",
        )  # fmt: skip
        observer.probe = batches(n=6, rows=8, time=20)
        observer.attach(Run(tmp_path))
        tables.append(observer.observe(language_model(), 0))
    torch.testing.assert_close(*(torch.tensor(t["value"]) for t in tables), atol=1e-9, rtol=0)
    columns = [c for c in tables[0] if c != "value"]
    pd.testing.assert_frame_equal(tables[0][columns], tables[1][columns])

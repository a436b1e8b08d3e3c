"""Sparsity and LearningCurves against naive second implementations: loops over tokens, closed-form gradients."""

import math
from collections import defaultdict

import pandas as pd
import pytest
import scipy.stats
import torch
from torch import nn

from lmdyn.analysis.words.concentration import OPEN_CLASSES
from lmdyn.callbacks import LearningCurves, Run, Sparsity
from lmdyn.runs.schema import select
from tests.helpers.foreign_tokenizers import NumberedWords
from tests.helpers.recorded import check_elsewhere

V = 12
TAGS = ["NOUN", "VERB", "DET", "ADP"]
TOKENIZER = NumberedWords(V, special=(0, 1))


class Model(nn.Module):
    """Embedding, a mixing of neighbours, logits: small enough to differentiate by hand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(V, 5)
        self.h = nn.Linear(5, 4)
        self.decoder = nn.Linear(4, V)

    def forward(self, input_ids):
        return self.decoder(self.h(self.embedding(input_ids)).tanh())


def make_batches(n=4, rows=3, time=6):
    g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(n):
        ids = torch.randint(0, V, (rows, time + 1), generator=g)
        labels = ids[:, 1:].clone()
        mask = torch.ones(rows, time, dtype=torch.long)
        labels[0, -1], mask[0, -1] = -100, 0  # padding
        tags = labels % 4
        tags[labels < 2] = -100
        batch = {"input_ids": ids[:, :-1], "labels": labels, "attention_mask": mask, "target_upos": tags}
        batches.append(batch)
    return batches


class Loader(list):
    label_names = {"upos": TAGS}


COUNTS = pd.DataFrame(
    {
        "token": [f"w{i}" for i in range(V)],
        "count": [0, 500, 900, 410, 400, 350, 300, 250, 200, 150, 120, 50],
        "NOUN": [0, 0, 900, 0, 400, 0, 160, 100, 10, 0, 120, 50],
        "VERB": [0, 500, 0, 0, 0, 0, 140, 150, 0, 0, 0, 0],
        "DET": [0, 0, 0, 410, 0, 0, 0, 0, 190, 0, 0, 0],
        "ADP": [0, 0, 0, 0, 0, 350, 0, 0, 0, 150, 0, 0],
    }
)
SITES = {"embedding": "embedding", "h": "h", "logits": "decoder"}


def attach(observer, tmp_path, batches):
    observer.probe = Loader(batches)
    observer.attach(Run(tmp_path, TOKENIZER, COUNTS))
    return observer


def chi(v):
    return math.sqrt(sum(x * x for x in v)) / sum(map(abs, v))


def naive_vectors(model, batches):
    """Each token's activations and gradients, one token at a time; the gradient at h from calculus, not autograd."""
    W, A = model.decoder.weight.detach().double(), model.h.weight.detach().double()
    for batch in batches:
        for b in range(len(batch["labels"])):
            for t in range(batch["labels"].shape[1]):
                x, y = int(batch["input_ids"][b, t]), int(batch["labels"][b, t])
                e = model.embedding.weight[x].detach().double()
                h = A @ e + model.h.bias.detach().double()
                z = W @ h.tanh() + model.decoder.bias.detach().double()
                dz = z.softmax(0)
                if y >= 0:
                    dz[y] -= 1
                else:
                    dz = torch.zeros_like(dz)
                dh = (W.T @ dz) * (1 - h.tanh() ** 2)
                activation = {"embedding": e, "h": h, "logits": z}
                gradient = {"embedding": A.T @ dh, "h": dh, "logits": dz}
                yield x, y, int(batch["attention_mask"][b, t]), activation, gradient


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    model, batches = Model(), make_batches()
    observer = Sparsity(sites=SITES, matched_size=2, matched_tolerance=2.0)
    attach(observer, tmp_path_factory.mktemp("run"), batches)
    return model, batches, observer, observer.observe(model, 7)


def value(table, quantity, site, role, **groups):
    groups = groups if "word" in groups else {"word": None, "pos_class": "", **groups}
    (found,) = select(table, quantity=quantity, site=site, role=role, **groups)["value"]
    return found


def naive_means(model, batches, site, role, kind):
    sums = defaultdict(list)
    for x, y, mask, activation, gradient in naive_vectors(model, batches):
        word = y if role == "target" else x
        if word < 0 or (role == "input" and not mask):
            continue
        v = (activation if kind == "chi_activation" else gradient)[site].tolist()
        sums[word].append(sum(map(abs, v)) if kind == "l1_gradient" else chi(v))
    return sums


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("role", ["target", "input"])
@pytest.mark.parametrize("kind", ["chi_activation", "chi_gradient", "l1_gradient"])
def test_per_word_means_and_rho(setting, site, role, kind):
    model, batches, _, table = setting
    naive = naive_means(model, batches, site, role, kind)
    everything = [v for values in naive.values() for v in values]
    assert value(table, kind, site, role) == pytest.approx(sum(everything) / len(everything), rel=1e-5)
    words = [w for w in naive if w not in TOKENIZER.all_special_ids]
    for w in words:
        expected = pytest.approx(sum(naive[w]) / len(naive[w]), rel=1e-5)
        assert value(table, kind, site, role, word=f"w{w}") == expected
    # of a class: majority and 100 occurrences, so not 11 (50)
    for pos_class, members in {"": words, "open": [2, 4, 6, 7, 10], "closed": [3, 5, 8, 9]}.items():
        there = [w for w in members if w in naive]
        means = [sum(naive[w]) / len(naive[w]) for w in there]
        expected = scipy.stats.pearsonr(means, COUNTS["count"][there]).statistic
        found = value(table, f"rho_{kind.removeprefix('chi_')}", site, role, pos_class=pos_class)
        assert found == pytest.approx(expected, abs=1e-4)


def test_special_tokens_are_no_words_and_frequency_is_the_training_count(setting):
    table = setting[3]
    words = table[table["quantity"].eq("frequency")].set_index("word")["value"]
    assert "w1" not in words
    assert words["w2"] == 900
    assert set(table["word"].dropna()) == set(words.index)
    upos = table.drop_duplicates("word").set_index("word")["upos"]
    assert upos["w6"] == "NOUN" in OPEN_CLASSES
    assert upos["w11"] == ""  # too rare to be associated


def test_impossible_matches_and_missing_counts_are_errors_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"no ranges of 120 words.*`matched_size: null` to omit"):
        attach(Sparsity(sites=SITES, pos_classes=True), tmp_path, make_batches())
    with pytest.raises(ValueError, match="training data has no parts of speech"):
        observer = Sparsity(sites=SITES, pos_classes=True)
        observer.probe = Loader(make_batches())
        observer.attach(Run(tmp_path, TOKENIZER, COUNTS[["token", "count"]]))
    observer = Sparsity(sites=SITES, frequency="train")
    observer.probe = Loader(make_batches())
    with pytest.raises(ValueError, match="`frequency: probe` to count tokens in the probe set"):
        observer.attach(Run(tmp_path, TOKENIZER, None))


def test_words_that_the_probe_set_only_reads_have_frequency_zero(tmp_path):
    batch = {"input_ids": torch.tensor([[2, 3, 11]]), "labels": torch.tensor([[3, 4, 5]])}
    observer = Sparsity(sites=SITES, frequency="probe", pos_classes=False, labels="aligned")
    observer.probe = [batch]
    observer.attach(Run(tmp_path))
    table = observer.observe(Model(), 0)
    words = table[table["quantity"].eq("frequency")].set_index("word")["value"]
    assert words.to_dict() == {"2": 0, "3": 1, "4": 1, "5": 1, "11": 0}


@pytest.mark.parametrize("tokenizer", [TOKENIZER, None])
def test_training_counts_that_lack_ids_are_an_error_before_training(tmp_path, tokenizer):
    for observer in (
        Sparsity(sites=SITES, pos_classes=False),
        Sparsity(sites=SITES, matched_size=None, frequency="probe"),
        LearningCurves(layers=(), bands=(3,)),
    ):
        observer.probe = Loader(make_batches())
        with pytest.raises(ValueError, match="`token_counts` has 9 rows for 12 token ids: add one row per"):
            observer.attach(Run(tmp_path, tokenizer, COUNTS[:9]))


def test_gradients_of_positions_without_label_are_no_zeros(tmp_path):
    """Masked language modelling: only some positions are predicted."""
    model, batches = Model(), make_batches()
    few = [{**b, "labels": torch.where(torch.arange(6) % 3 == 0, b["labels"], -100)} for b in batches]
    observer = attach(Sparsity(sites=SITES, matched_size=None), tmp_path, few)
    table = observer.observe(model, 0)
    kept = [gradient["h"] for _, y, mask, _, gradient in naive_vectors(model, few) if y >= 0 and mask]
    naive = [float(g.abs().sum()) for g in kept]
    assert value(table, "l1_gradient", "h", "input") == pytest.approx(sum(naive) / len(naive), rel=1e-5)


def test_wrong_sites_are_refused(tmp_path, setting):
    class TimeFirst(Model):
        def forward(self, input_ids):
            return self.decoder(self.h(self.embedding(input_ids.T)).tanh()).transpose(0, 1)

    with pytest.raises(ValueError, match="name a module that returns one vector per token"):
        setting[2].observe(TimeFirst(), 0)


def test_attention_entropy_at_attention_sites(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=V, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    shared = {"sites": {}, "attention_sites": {"a0": "transformer.h.0.attn"}, "gradients": False}
    observer = Sparsity(**shared, pos_classes=False, frequency="probe")
    attach(observer, tmp_path, make_batches())
    table = observer.observe(model, 0)
    config._attn_implementation = "eager"
    entropies, ratios = [], []  # token i attends to i + 1 places, and the first does not count
    for batch in make_batches():
        kept = {k: batch[k] for k in ("input_ids", "attention_mask")}
        weights = model.eval()(**kept, output_attentions=True).attentions[0].detach().double()
        entropy = torch.special.entr(weights).sum(-1).mean(1)
        entropies += entropy[batch["labels"] >= 0].tolist()
        for b, t in (batch["labels"] >= 0).nonzero().tolist():
            places = int(batch["attention_mask"][b, : t + 1].sum())
            ratios += [float(entropy[b, t]) / math.log(places)] if places > 1 else []
    found = value(table, "attention_entropy", "a0", "target")
    assert found == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    found = value(table, "normalized_attention_entropy", "a0", "target")
    assert found == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert 0.9 < found < 1  # untrained
    assert not table["quantity"].str.contains("chi").any()
    within = Sparsity(**shared, class_min_count=50, matched_size=None)
    check_elsewhere(within, attach(within, tmp_path, make_batches()).observe(model, 0))


class TestLearningCurves:
    def naive(self, batches, model):
        for batch in batches:
            log_p = model(batch["input_ids"]).detach().double().log_softmax(-1)
            for b, t in (batch["labels"] >= 0).nonzero().tolist():
                y = int(batch["labels"][b, t])
                hit = float(log_p[b, t].argmax() == y)
                yield y, int(batch["target_upos"][b, t]), -float(log_p[b, t, y]), hit

    def test_by_tag_and_band(self, tmp_path):
        model, batches = Model(), make_batches()
        observer = attach(LearningCurves(bands=(3, 7)), tmp_path, batches)
        table = observer.observe(model, 0)
        tokens = list(self.naive(batches, model))

        def mean(kept, column):
            values = [t[column] for t in tokens if kept(t)]
            return sum(values) / len(values)

        def found(quantity, by="", group=""):
            rows = table[table["quantity"].eq(quantity) & table["by"].eq(by) & table["group"].eq(group)]
            return rows["value"].item()

        for quantity, column in (("loss", 2), ("accuracy", 3)):
            assert found(quantity) == pytest.approx(mean(lambda t: True, column), rel=1e-5)
            for i, tag in enumerate(TAGS):
                expected = mean(lambda t, i=i: t[1] == i, column)
                assert found(quantity, "upos", tag) == pytest.approx(expected, rel=1e-5)
            # words 2, 3, 4 … by falling count; 0 and 1 are special and in no band
            for band, words in {"1-2": {2, 3}, "3-6": {4, 5, 6, 7}, "7+": {8, 9, 10, 11}}.items():
                expected = mean(lambda t, words=words: t[0] in words, column)
                assert found(quantity, "rank", band) == pytest.approx(expected, rel=1e-5)
        assert found("perplexity") == pytest.approx(math.exp(found("loss")), rel=1e-9)

    def test_bad_layers_and_bands(self, tmp_path):
        with pytest.raises(ValueError, match=r"no gold layers topic; the layers are upos"):
            attach(LearningCurves(layers=("topic",)), tmp_path, make_batches())
        with pytest.raises(ValueError, match="expected increasing frequency ranks"):
            LearningCurves(bands=(10, 5))

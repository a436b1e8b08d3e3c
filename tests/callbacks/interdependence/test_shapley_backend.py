"""Interdependence by Shapley interaction against every pair by itself, for models and words of many kinds."""

import itertools
import logging

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lmdyn.analysis import shapley_interaction
from lmdyn.callbacks import Interdependence, ObservationStore, Run
from lmdyn.callbacks.interdependence.token_pairs import TokenPairs
from lmdyn.callbacks.observing.store import canonical_settings
from lmdyn.cli.report import write_report
from lmdyn.datamodules import ConlluCorpus, TextCorpus
from tests.callbacks.interdependence.test_interdependence import (
    KINDS,
    MAX_DISTANCE,
    attach,
    check_means,
    climb,
    conllu,
    counts,
    found,
    language_model,
    render,
    sentences,
    tokenizer,
)
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.one_rank import as_rank

LENGTHS = (5, 1, 4, 2, 5, 3)
TEXT = sentences(LENGTHS)
SHAPLEY = {"backend": "shapley", "min_pairs": 2}


def pieces(*, prefix=False, special=None, extra=()):
    """A tokenizer that makes three tokens of each word: ``w``, ``0``, ``3``; of byte-level kinds ``Ġw``."""
    byte_level = prefix is not None and special is None
    alphabet = ["w", *"0123456789", *(["Ġ"] if byte_level else [])]
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<pad>", "</s>", *extra, *alphabet])}
    backend = Tokenizer(
        models.BPE(vocabulary, [("Ġ", "w")] if byte_level and "Ġw" in vocabulary else [], unk_token="<unk>")
    )
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = decoders.ByteLevel()
    else:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special is not None:
        backend.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(t, vocabulary[t]) for t in ("[CLS]", "[SEP]")]
        )
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **(special or {}))


def rows_of(text, encode, values):
    """A row for each pair of each sentence, as ``direct`` of the decomposition's tests has it."""
    rows = []
    for number, (tokens, heads, tags) in enumerate(text):
        ids, words = encode(tokens)
        for a, b in itertools.combinations(range(len(tokens)), 2):
            if b - a > MAX_DISTANCE:
                continue
            up, other = climb(heads, a), climb(heads, b)
            common = next(word for word in up if word in other)
            kinds = {KINDS[tags[a]], KINDS[tags[b]]}
            kind = None if None in kinds else kinds.pop() if len(kinds) == 1 else "mixed"
            rows.append(
                {"sentence": number, "distance": b - a, "syntactic": up.index(common) + other.index(common),
                 "pos_class": kind, **values(ids, words, a, b)}
            )  # fmt: skip
    return pd.DataFrame(rows)


def one_by_one(forwards, vectors, baseline, index="taylor", causal=True):
    """The values of a pair by the function of two spans, on word vectors: nothing of the observer takes part."""

    def values(ids, words, a, b):
        words = torch.tensor(words)
        at = int((words == b).nonzero()[-1])
        x = vectors(torch.tensor(ids))
        own = torch.zeros(len(ids), dtype=torch.bool)  # the last token of each word
        own[[int((words == w).nonzero()[-1]) for w in set(words.tolist()) - {-1}]] = True
        others = own & (words != a) & (words != b)
        if causal:
            others &= torch.arange(len(ids)) <= at

        def spread(rows, forward):  # the last token of each other word stands for all of it
            whole = rows.clone()
            for w in set(words[others].tolist()):
                last = int((words == w).nonzero()[-1])
                gone = (rows[:, last] == baseline).all(-1)
                whole[:, words == w] = torch.where(gone[:, None, None], baseline, x[words == w])
            return forward(whole)

        return {
            site: float(
                shapley_interaction(
                    lambda rows, f=forward: spread(rows, f), x, words == a, words == b, baseline=baseline, at=at,
                    others=others, index=index, relative_to="whole",
                ).value
            )
            for site, forward in forwards.items()
        }  # fmt: skip

    return values


@pytest.fixture(scope="module")
def lstm():
    return language_model().eval()


def lstm_forwards(module):
    def hidden(x):
        for layer in module.lstm.layers:
            x = layer(x)[0]
        return x

    return {"hidden": hidden, "logits": lambda x: module.decoder(hidden(x))}


def words_and_start(tokens):
    words = tokenizer()
    return [words.eos_token_id, *words.convert_tokens_to_ids(tokens)], [-1, *range(len(tokens))]


def mean_vector(module, text=TEXT):
    ids = torch.tensor(tokenizer().convert_tokens_to_ids([w for words, _, _ in text for w in words]))
    return module.embedding(ids).mean(0).detach()


def shapley(folder, **settings):
    settings = {"text": TEXT, **SHAPLEY, "max_distance": MAX_DISTANCE, **settings}
    return attach(folder, **settings)


@pytest.mark.parametrize("index", ["taylor", "grabisch"])
def test_every_mean_is_that_of_its_pairs(lstm, tmp_path, index):
    table = shapley(tmp_path, index=index).observe(lstm, 3)
    values = one_by_one(lstm_forwards(lstm), lambda i: lstm.embedding(i).detach(), mean_vector(lstm), index)
    pairs = rows_of(TEXT, words_and_start, values)
    assert check_means(table, pairs, min_pairs=2) > 100
    assert float((pairs["hidden"] - pairs["logits"]).abs().max()) > 1e-3
    errors = table[table["quantity"].eq("sampling_error")]
    assert errors["value"].eq(0).all()
    assert len(errors) == 2 * MAX_DISTANCE
    assert not Interdependence.is_scalar(table)[errors.index].any()


@pytest.mark.parametrize("absence", ["pad", "unk", "mask"])
def test_absent_words_are_special_tokens(lstm, tmp_path, absence):
    words = tokenizer()
    if absence == "mask":
        with pytest.raises(ValueError, match=r"has no mask token.*choose `absence: mean` or pad or unk"):
            shapley(tmp_path / "none", absence=absence, words=words)
        words.mask_token = words.unk_token
    token = getattr(words, f"{absence}_token_id")
    table = shapley(tmp_path, absence=absence, words=words, spaces=["hidden"]).observe(lstm, 0)
    assert set(table["site"]) == {"hidden"}
    forwards = {"hidden": lstm_forwards(lstm)["hidden"]}
    baseline = lstm.embedding(torch.tensor(token)).detach()
    pairs = rows_of(
        TEXT, words_and_start, one_by_one(forwards, lambda i: lstm.embedding(i).detach(), baseline)
    )
    check_means(table, pairs, sites=("hidden",), min_pairs=2)


def test_deletion_moves_later_words(lstm, tmp_path):
    """Of two words alone: v(l), v(r) and v(∅) are those of shorter sentences, after the first token."""
    text = [(["w01", "w02"], [1, -1], ["NOUN", "VERB"]), (["w03", "w04"], [1, -1], ["NOUN", "VERB"])]
    table = shapley(tmp_path, absence="delete", text=text, spaces=["hidden"]).observe(lstm, 0)
    expected = []
    for words, _, _ in text:
        eos, l, r = words_and_start(words)[0]  # noqa: E741
        forward = lambda *ids: lstm_forwards(lstm)["hidden"](lstm.embedding(torch.tensor([ids])))[0, -1]  # noqa: E731
        with torch.no_grad():
            both, left, right, none = forward(eos, l, r), forward(eos, l), forward(eos, r), forward(eos)
        expected.append(float((both - left - right + none).norm() / both.norm()))
    got = found(table, quantity="di", site="hidden", distance=1)
    assert got == pytest.approx(sum(expected) / 2, rel=1e-10)


def test_context_alone_is_cheap_and_another_number(lstm, tmp_path):
    whole = shapley(tmp_path / "a").observe(lstm, 0)
    table = shapley(tmp_path / "b", coalitions="context").observe(lstm, 0)
    eos, *ids = words_and_start(TEXT[0][0])[0]

    def h(*gone):
        x = lstm.embedding(torch.tensor([[eos, *ids]])).detach()
        x[0, list(gone)] = mean_vector(lstm, TEXT[:1])
        return lstm_forwards(lstm)["hidden"](x)[0]

    observer = shapley(tmp_path / "one", coalitions="context", text=TEXT[:1], min_pairs=1, spaces=["hidden"])
    one = observer.observe(lstm, 0)
    with torch.no_grad():
        value = (h() - h(1) - h(5) + h(1, 5))[5].norm() / h()[5].norm()
    assert found(one, quantity="di", site="hidden", distance=4) == pytest.approx(float(value), rel=1e-10)
    assert found(whole, quantity="di", site="hidden", distance=1) != pytest.approx(
        found(table, quantity="di", site="hidden", distance=1), rel=1e-3
    )


def test_few_samples_cost_little_and_are_near(lstm, tmp_path):
    exact = shapley(tmp_path / "a").observe(lstm, 0)
    drawn = shapley(tmp_path / "b", exact_up_to=2, samples=256).observe(lstm, 0)
    other = shapley(tmp_path / "c", exact_up_to=2, samples=256, seed=1).observe(lstm, 0)
    for distance in range(1, MAX_DISTANCE + 1):
        of = {"site": "logits", "distance": distance}
        error = found(drawn, quantity="sampling_error", **of)
        values = [found(table, quantity="di", **of) for table in (exact, drawn, other)]
        assert error > 0
        assert abs(values[1] - values[0]) < 4 * error
        assert values[1] != values[2]


def test_how_sentences_are_batched_and_split_does_not_matter(lstm, tmp_path):
    settings = {"exact_up_to": 3, "samples": 8}
    whole = shapley(tmp_path / "whole", **settings)
    expected = whole.observe(lstm, 0)
    for batch_tokens in (12, 30):
        observer = shapley(tmp_path / str(batch_tokens), batch_tokens=batch_tokens, **settings)
        table = observer.observe(lstm, 0)
        assert observer.settings == whole.settings
        pd.testing.assert_frame_equal(table, expected, rtol=1e-9, atol=1e-12)
    seen = {rank: [] for rank in (0, 1, None)}
    for rank, parts in seen.items():
        keep = lambda x, parts=parts: (parts.append(x), x)[1]  # noqa: E731
        with as_rank(rank or 0, 1 if rank is None else 2, all_reduce_sum=keep):
            observer.observe(lstm, 0)
    assert len(seen[None]) == 4  # values and errors of two sites
    for one, two, both in zip(*seen.values(), strict=True):
        torch.testing.assert_close(one + two, both, equal_nan=True)
        assert bool((one.nan_to_num() != 0).any() & (two.nan_to_num() != 0).any())


def bert(vocab_size, dtype=torch.float64):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=vocab_size, initializer_range=0.6, max_position_embeddings=40, **sizes)
    return BertForMaskedLM(config).to(dtype).eval()


def gpt2(vocab_size, positions=40, dtype=torch.float64):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=positions, initializer_range=0.6,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(dtype).eval()


CLS = {
    "special": {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
    "extra": ("[CLS]", "[SEP]", "[MASK]"),
}
SHORT = [t for t in TEXT if len(t[0]) <= 4]


def encoder(words, ids_of_word, start=(), end=()):
    def encode(tokens):
        found = [ids_of_word(i, t) for i, t in enumerate(tokens)]
        ids = [*start, *itertools.chain(*found), *end]
        return ids, [-1] * len(start) + [w for w, f in enumerate(found) for _ in f] + [-1] * len(end)

    return encode


def test_words_of_several_tokens_of_a_bidirectional_model(tmp_path):
    """Between [CLS] and [SEP]; every word of the sentence is a player, and is read at its last token."""
    words = pieces(**CLS)
    model = bert(len(words))
    observer = shapley(tmp_path, words=words, absence="mask", text=SHORT)
    assert isinstance(observer.pairs, TokenPairs)
    table = observer.observe(model, 0)

    def hidden(x):
        return model.bert(inputs_embeds=x).last_hidden_state

    forwards = {"hidden": hidden, "logits": lambda x: model.cls(hidden(x))}
    embedding = model.bert.embeddings.word_embeddings
    encode = encoder(
        words, lambda _, t: words.convert_tokens_to_ids(list(t)), [words.cls_token_id], [words.sep_token_id]
    )
    assert encode(["w01"])[0] == words("w01")["input_ids"]
    baseline = embedding.weight[words.mask_token_id].detach()
    values = one_by_one(forwards, lambda i: embedding(i).detach(), baseline, causal=False)
    check_means(table, rows_of(SHORT, encode, values), min_pairs=2)
    one_way = one_by_one(forwards, lambda i: embedding(i).detach(), baseline)
    control = rows_of(SHORT, encode, one_way)
    group = control[control["distance"].eq(1)]["hidden"].mean()
    assert found(table, quantity="di", site="hidden", distance=1) != pytest.approx(group, rel=1e-4)


@pytest.mark.parametrize("prefix", [False, True])
def test_byte_level_tokens_hold_the_space_before_a_word(tmp_path, prefix):
    """As the text is encoded: a list of words would be run together. After </s>, the tokenizer adds nothing itself."""
    words = pieces(prefix=prefix)
    model = gpt2(len(words))
    observer = shapley(tmp_path, words=words, text=SHORT, spaces=["hidden"])
    (batch,) = [b for b in observer.pairs.batches if len(SHORT[b.numbers[0]][0]) == 2]
    text = " ".join(SHORT[batch.numbers[0]][0])
    assert batch.ids[0].tolist() == [words.eos_token_id, *words(text)["input_ids"]]
    first = [0] * 3 if not prefix else [0] * 4
    assert batch.words[0].tolist() == [-1, *first, *[1] * 4]
    space = words.convert_tokens_to_ids("Ġ")
    encode = encoder(
        words,
        lambda i, t: [*([space] if prefix or i else []), *words.convert_tokens_to_ids(list(t))],
        [words.eos_token_id],
    )
    embedding = model.transformer.wte
    ids = torch.tensor([i for t, _, _ in SHORT for i in encode(t)[0][1:]])
    baseline = embedding(ids).mean(0).detach()
    forwards = {"hidden": lambda x: model.transformer(inputs_embeds=x).last_hidden_state}
    pairs = rows_of(SHORT, encode, one_by_one(forwards, lambda i: embedding(i).detach(), baseline))
    check_means(observer.observe(model, 0), pairs, sites=("hidden",), min_pairs=2)


def test_slow_tokenizers_are_refused(tmp_path):
    class Slow:
        is_fast = False

    with pytest.raises(
        ValueError,
        match=r"expected a tokenizer that returns the word of each token, got Slow: .*fast tokenizer",
    ):
        TokenPairs([], Slow(), None, 2, 10, "interdependence")


def test_words_without_tokens_are_left_out_and_counted(tmp_path, caplog):
    words = pieces(**CLS)
    words.backend_tokenizer.normalizer = normalizers.Replace("w07", "")
    text = [(["w01", "w07", "w02"], [1, -1, 1], ["NOUN"] * 3)] * 2
    with caplog.at_level(logging.INFO):
        observer = shapley(tmp_path, words=words, text=text)
    assert "2 of 6 words have no token of this tokenizer: 4 pairs with them are left out" in caplog.text
    assert observer.pairs.table["distance"].tolist() == [2, 2]
    table = observer.observe(bert(len(words)), 0)
    assert found(table, quantity="pairs", site="hidden", distance=2) == 2
    assert found(table, quantity="pairs", site="hidden", distance=1) is None


# ---------------------------------------------------------------- both backends


def with_unknown():
    """Words 2 of all sentences are of no vocabulary."""
    return [
        (["out" if i == 2 else w for i, w in enumerate(words)], heads, tags) for words, heads, tags in TEXT
    ]


@pytest.mark.parametrize("backend", ["decomposition", "shapley"])
def test_pairs_with_unknown_words_are_counted_and_may_be_left_out(lstm, tmp_path, backend, caplog):
    text, settings = with_unknown(), {"backend": backend, "min_pairs": 2, "max_distance": MAX_DISTANCE}
    with caplog.at_level(logging.INFO):
        kept = attach(tmp_path / "keep", text=text, **settings)
        skipped = attach(tmp_path / "skip", text=text, unknown="skip", **settings)
    rows = [
        (b - a, 2 in (a, b))
        for words, _, _ in text
        for a, b in itertools.combinations(range(len(words)), 2)
        if b - a <= MAX_DISTANCE
    ]
    unknown = sum(u for _, u in rows)
    assert f"{unknown} pairs have a word that the tokenizer does not know and are left out" in caplog.text
    kept, skipped = kept.observe(lstm, 0), skipped.observe(lstm, 0)
    assert not kept["quantity"].eq("unknown_pairs").any()
    for distance in range(1, MAX_DISTANCE + 1):
        of = {"site": "hidden", "distance": distance}
        lost = sum(u for d, u in rows if d == distance)
        number = sum(d == distance for d, _ in rows)
        assert found(kept, quantity="pairs", **of) == number
        assert found(skipped, quantity="unknown_pairs", **of) == lost
        assert (found(skipped, quantity="pairs", **of) or 0) == (number - lost if number - lost > 1 else 0)
        if lost:
            assert found(skipped, quantity="di", **of) != found(kept, quantity="di", **of)
    assert not Interdependence.is_scalar(skipped)[skipped["quantity"].eq("unknown_pairs")].any()


@pytest.mark.parametrize("backend", ["decomposition", "shapley"])
def test_without_trees_or_tags_there_are_distances_all_the_same(lstm, tmp_path, backend, caplog):
    settings = {"backend": backend, "min_pairs": 2, "max_distance": MAX_DISTANCE, "token_counts": counts()}
    whole = attach(tmp_path / "whole", text=TEXT, **settings).observe(lstm, 0)
    by_distance = whole[whole["syntactic"].isna() & whole["pos_class"].isna()]
    for missing, gone in (("heads", "syntactic"), ("upos", "pos_class")):
        caplog.clear()
        (tmp_path / missing).mkdir()
        path = conllu(tmp_path / missing / "x.conllu", TEXT, **{missing: False})
        observer = attach(tmp_path / missing, probe=ConlluCorpus(validation=path), **settings)
        assert f"{len(TEXT)} of {len(TEXT)} sentences have no {missing}: there are no" in caplog.text
        table = observer.observe(lstm, 0)
        assert table[gone].isna().all()
        assert set(table["quantity"]) <= set(whole["quantity"])
        expected = by_distance
        if missing == "heads":
            kinds = ("syntactic", "partial", "matched")
            of_trees = [q for q in set(whole["quantity"]) if any(kind in q for kind in kinds)]
            assert len(of_trees) == 12  # each with its error, by distance and over distances
            assert set(table["quantity"]) == set(whole["quantity"]) - set(of_trees)
            expected = expected[~expected["quantity"].isin(of_trees)]
        got = table[table["syntactic"].isna() & table["pos_class"].isna()]
        pd.testing.assert_frame_equal(
            got.reset_index(drop=True), expected.reset_index(drop=True), rtol=1e-12, atol=1e-12
        )
        observer.store.write(0, table)
        figures = Interdependence.figures(observer.store.read(), observer.settings)
        assert any("syntactic" in name for name in figures) == (missing != "heads")
        render(figures)


def test_plain_text_of_the_run_itself(lstm, tmp_path):
    """A corpus without any annotation, with the default arguments but for its size."""
    file = tmp_path / "text.txt"
    file.write_text("\n".join(" ".join(words) for words, _, _ in TEXT) + "\n", encoding="utf-8")
    probe = TextCorpus(validation=str(file), batch_size=1)
    observer = Interdependence(backend="shapley", min_pairs=2)
    observer.probe = probe
    observer.attach(Run(tmp_path, tokenizer()))
    table = observer.observe(lstm, 0)
    assert table["quantity"].eq("di").any()


def test_files_of_before_are_of_the_decomposition(tmp_path):
    old = {"max_distance": 3, "variant": "published"}
    today = canonical_settings(Interdependence, old)
    defaults = Interdependence().hparams
    assert set(today) - set(old) == {*Interdependence.legacy_settings, "labels"}
    for name, value in Interdependence.legacy_settings.items():
        assert today[name] == (list(defaults[name]) if name == "spaces" else defaults[name]) == value
    assert today["backend"] == "decomposition"


def test_observing_leaves_module_and_generator_alone(tmp_path):
    module = language_model().train()
    module.lstm.eval()
    assert_leaves_alone(shapley(tmp_path, exact_up_to=3, samples=4), module)
    assert not module.embedding._forward_hooks
    assert not any(m._forward_hooks for m in module.modules())


# ---------------------------------------------------------------- models


def small(name):
    return ARCHITECTURES[name]()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mamba", "bert", "albert", "t5", "nanogpt", "deep_gru"])
def test_models_of_many_kinds_run_without_a_path(tmp_path, name):
    model = small(name)
    assert len(tokenizer()) <= VOCABULARY
    observer = shapley(tmp_path, text=SHORT)
    observer.check_module(model)
    table = observer.observe(model, 0)
    sites = ["hidden"] if name == "t5" else ["hidden", "logits"]
    assert list(dict.fromkeys(table["site"])) == sites
    di = table[table["quantity"].eq("di")]["value"]
    assert bool((di > 0).all() & (di < 5).all())


def test_paths_that_are_found_are_settings(tmp_path):
    model, other = small("gpt2"), small("bert")
    observer = shapley(tmp_path, text=SHORT)
    assert [observer.settings[name] for name in ("hidden", "embedding")] == ["auto", "auto"]
    observer.store.write(0, observer.observe(model, 0))
    paths = {"hidden": "transformer.ln_f", "embedding": "transformer.wte"}
    for name, path in paths.items():
        assert observer.settings[name] == observer.store.about()["settings"][name] == path
    again = shapley(tmp_path, text=SHORT)  # as before a replay: what is not found yet is no difference
    again.check_module(model)
    again.store.check_settings()
    again = shapley(tmp_path, text=SHORT)
    again.check_module(other)
    with pytest.raises(ValueError, match=r"other settings \(.*hidden: 'transformer.ln_f' there, 'bert\."):
        again.store.check_settings()


def test_hidden_is_the_final_norm_or_what_is_named(tmp_path):
    model = small("gpt2")
    tables = {
        path: shapley(tmp_path / str(i), text=SHORT, hidden=path, spaces=["hidden"]).observe(model, 0)
        for i, path in enumerate((None, "transformer.ln_f", "transformer.h.0"))
    }
    pd.testing.assert_frame_equal(tables[None], tables["transformer.ln_f"])
    assert not tables[None]["value"].equals(tables["transformer.h.0"]["value"])


def test_time_first_is_turned(tmp_path):
    class Own(nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.embedding, self.out = nn.Embedding(64, 4), nn.Linear(5, 64)
            self.rnn = nn.LSTM(4, 5, batch_first=batch_first)

        def forward(self, input_ids):
            x = self.embedding(input_ids)
            if not self.rnn.batch_first:
                return self.out(self.rnn(x.transpose(0, 1))[0].transpose(0, 1))
            return self.out(self.rnn(x)[0])

    one, other = Own(True), Own(False)
    other.load_state_dict(one.state_dict())
    tables = [shapley(tmp_path / str(i), hidden="rnn").observe(m, 0) for i, m in enumerate((one, other))]
    pd.testing.assert_frame_equal(*tables, rtol=1e-4)


def test_a_model_that_reads_all_is_not_causal(tmp_path):
    model = small("bert")
    with pytest.raises(ValueError, match="`reading: causal`, but the model's output depends on later words"):
        shapley(tmp_path / "a", reading="causal", text=SHORT).observe(model, 0)
    told = shapley(tmp_path / "b", reading="bidirectional", text=SHORT).observe(model, 0)
    measured = shapley(tmp_path / "c", text=SHORT).observe(model, 0)
    pd.testing.assert_frame_equal(told, measured)


class Odd(nn.Module):
    """No embedding that can be watched, no block, no logits of each word."""

    def __init__(self, kind):
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 4))
        self.kind = kind
        self.inner = nn.Linear(4, 6)

    def forward(self, input_ids):
        x = self.inner(self.table[input_ids])
        return {"pooled": x.mean(1), "plain": x, "none": torch.tensor(0)}[self.kind]


def test_modules_that_do_not_fit_are_refused_with_the_remedy(tmp_path):
    def look(module, match, error=ValueError, **settings):
        observer = shapley(tmp_path / str(look.number), text=SHORT, **settings)
        look.number += 1
        with pytest.raises(error, match=match):
            observer.check_module(module)

    look.number = 0
    spaces = {"spaces": ["logits"]}
    look(
        Odd("plain"),
        "no embedding was found in the module.*set `embedding` to the path.*`absence: mask`",
        **spaces,
    )
    look(Odd("plain"), "no norm or block was found in the module.*`spaces: .logits.`", absence="pad")
    look(
        Odd("pooled"),
        r"expected logits as \(batch, time, features\).*`spaces: .hidden.`",
        absence="pad",
        **spaces,
    )
    look(gpt2(64, positions=4), "cannot read a sentence of 5 tokens.*n_positions is 4.*`max_length`")
    look(gpt2(10), "ids up to .*vocab_size is 10.*the model's own tokenizer")
    look(small("gpt2"), "has no module 'h.9'; there are: ", hidden="h.9")
    look(small("t5"), "logits of an encoder-decoder are for its decoder's positions", **spaces)
    for settings in ({"samples": 1}, {"exact_up_to": -1}, {"backend": "lime"}, {"index": "x"}, {"absence": "zero"},
                     {"reading": "both"}, {"coalitions": "some"}, {"unknown": "drop"}, {"spaces": []},
                     {"spaces": ["state"]}, {"variant": "printed"}):  # fmt: skip
        name = next(iter(settings))
        with pytest.raises(ValueError, match=f"{name} (is|are) .*: expected"):
            Interdependence(**settings)


def test_much_to_read_is_said_loudly(tmp_path, caplog):
    long = sentences((60,) * 8)
    with caplog.at_level(logging.INFO):
        shapley(tmp_path / "a", text=long, samples=4096)
    assert any(
        r.levelname == "WARNING" and "fewer `samples` or `coalitions: context`" in r.message
        for r in caplog.records
    )
    caplog.clear()
    with caplog.at_level(logging.INFO):
        shapley(tmp_path / "b", text=long, coalitions="context")
    assert not any(r.levelname == "WARNING" for r in caplog.records)


# ---------------------------------------------------------------- figures


@pytest.fixture(scope="module")
def runs(lstm, tmp_path_factory):
    """An LSTM with both backends and a transformer, each at two steps."""
    root = tmp_path_factory.mktemp("runs")
    transformer = [gpt2(len(tokenizer())), gpt2(len(tokenizer()))]
    transformer[1].transformer.wte.weight.data *= 2
    for run, backend, models_ in (
        ("lstm", "decomposition", [lstm, language_model(seed=1)]),
        ("lstm", "shapley", [lstm, language_model(seed=1)]),
        ("gpt", "shapley", transformer),
    ):
        name = "interdependence" if backend == "decomposition" else "interdependence_shapley"
        observer = Interdependence(backend=backend, name=name, max_distance=MAX_DISTANCE, min_pairs=2)
        observer = attach(root / run, observer, text=TEXT)
        for step, model in enumerate(models_):
            observer.store.write(10 * step, observer.observe(model, 10 * step))
    return root


def labels(ax):
    return [line.get_label() for line in ax.lines if not line.get_label().startswith("_")]


@pytest.mark.slow
def test_an_lstm_with_both_backends_and_a_transformer_are_one_figure(runs, tmp_path):
    write_report([runs / "lstm", runs / "gpt"], tmp_path / "report")
    files = {path.stem for path in (tmp_path / "report").glob("*.png")}
    assert {"interdependence_shapley_by_distance", "interdependence_shapley_backends_by_distance"} <= files
    assert "interdependence_shapley_backends_over_training" in files
    assert "interdependence_shapley_by_syntactic_distance_hidden_gpt" in files
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Without figures" not in page


def read(runs, run, name):
    return ObservationStore(runs / run / "observations" / name).read().assign(run=str(runs / run))


def test_lines_of_the_comparison(runs):
    own = pd.concat(
        [read(runs, run, "interdependence_shapley") for run in ("lstm", "gpt")], ignore_index=True
    )
    other = read(runs, "lstm", "interdependence")
    figures = Interdependence.figures_beside(own, {"Interdependence": other})
    render({"one": figures["backends_over_training"]})
    ax = figures["backends_by_distance"].axes[0]
    assert labels(ax) == ["lstm, decomposition", "lstm, shapley", "gpt, shapley"]
    for line, table, run in zip(ax.lines, (other, own, own), ("lstm", "lstm", "gpt"), strict=True):
        last = table[table["step"].eq(10) & table["run"].eq(str(runs / run))]
        expected = [found(last, quantity="di", site="hidden", distance=d) for d in range(1, MAX_DISTANCE + 1)]
        assert line.get_ydata().tolist() == pytest.approx(expected)
    assert Interdependence.figures_beside(other, {"Interdependence": own}) == {}  # drawn with the other one
    assert Interdependence.figures_beside(own, {}) == {}
    single = Interdependence.figures_beside(
        own[own["run"].str.endswith("lstm")].drop(columns="run"),
        {"Interdependence": other.drop(columns="run")},
    )
    assert labels(single["backends_by_distance"].axes[0]) == ["decomposition", "shapley"]
    several = Interdependence.figures(own, {})
    render({"one": several["by_distance"]})
    assert "by_syntactic_distance_logits_gpt" in several
    assert labels(several["by_distance"].axes[0]) == ["lstm", "gpt"]
    mixed = Interdependence.figures(
        pd.concat([other, own[own["run"].str.endswith("gpt")]], ignore_index=True), {}
    )
    assert labels(mixed["over_training"].axes[0]) == ["lstm, decomposition", "gpt, shapley"]

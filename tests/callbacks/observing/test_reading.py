"""Observers meet modules and data that are not ours: what labels mean, names of batches, sites, one error each."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler

from lmdyn.callbacks import (
    AttentionPatterns,
    EncoderDynamics,
    Geometry,
    LearningCurves,
    Run,
    Similarity,
    Sparsity,
    WordClusters,
)
from lmdyn.callbacks.observing.recording import Passes, observe_together
from lmdyn.runs.store import ObservationStore
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY
from tests.helpers.refusals import assert_refused

torch.manual_seed(0)
IDS = torch.randint(3, VOCABULARY, (4, 3, 12))
PAIRS = [(ids[:, :-1], ids[:, 1:]) for ids in IDS]
LLAMA = ARCHITECTURES["llama"]
SHIFTED_INSIDE = [{"input_ids": ids, "labels": ids} for ids in IDS]


def attach(observer, probe, folder, **run):
    observer.probe = probe
    observer.attach(Run(folder, **run))
    return observer


def whole_of(table, quantity="loss"):
    """The value of all tokens."""
    whole = table[table["by"].eq("") & table["quantity"].eq(quantity)]
    return float(whole["value"].iloc[0])


def own_loss(module, labels):
    """The loss that a model of transformers measures."""
    with torch.no_grad():
        return float(module(input_ids=IDS.flatten(0, 1), labels=labels.contiguous()).loss)


class Copies(nn.Module):
    """Predicts the word that it has just read."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(20 * torch.eye(VOCABULARY))

    def forward(self, input_ids):
        return self.embedding(input_ids)


class Softmax(Copies):
    def forward(self, input_ids):
        return super().forward(input_ids).softmax(-1)


def test_a_module_that_copies_is_not_right(tmp_path):
    ids = torch.cat([IDS, IDS[:, :, -1:]], dim=2)  # one word of twelve is said twice
    probe = [{"input_ids": row, "labels": row} for row in ids]
    table = attach(LearningCurves(), probe, tmp_path).observe(Copies(), 0)
    assert whole_of(table, "accuracy") == pytest.approx(1 / 12, abs=0.01)
    declared = attach(LearningCurves(labels="aligned", name="declared"), probe, tmp_path).observe(Copies(), 0)
    assert whole_of(declared, "accuracy") == 1  # the control: what lmdyn said before 0.1


@pytest.mark.parametrize("name", ["gpt2", "llama", "mamba"])
def test_loss_is_that_of_transformers_in_each_convention(name, tmp_path):
    module = ARCHITECTURES[name]()
    expected = own_loss(module, IDS.flatten(0, 1))
    for number, probe in enumerate((SHIFTED_INSIDE, PAIRS, list(IDS), [{"input_ids": i} for i in IDS])):
        table = attach(LearningCurves(name=f"c{number}"), probe, tmp_path).observe(module, 0)
        assert whole_of(table) == pytest.approx(expected, abs=1e-6)


def test_the_decision_is_a_setting_and_replay_takes_it(tmp_path):
    module = LLAMA()
    observer = attach(LearningCurves(), SHIFTED_INSIDE, tmp_path)
    observer.store.write(0, observer.observe(module, 0))
    assert ObservationStore(tmp_path / "observations/learning_curves").about()["settings"]["labels"] == "next"
    replayed = attach(LearningCurves(), SHIFTED_INSIDE, tmp_path)
    assert replayed.convention == "next"
    with pytest.raises(ValueError, match="labels: 'next' there, 'aligned' here"):
        attach(LearningCurves(labels="aligned"), SHIFTED_INSIDE, tmp_path)
    sites = attach(Sparsity(), SHIFTED_INSIDE, tmp_path)
    sites.store.write(0, sites.observe(module, 0))
    there = list(sites.store.about()["settings"]["sites"])
    assert there == ["embedding", "block_00", "block_01", "norm", "logits"]
    other = attach(Sparsity(), SHIFTED_INSIDE, tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(sites:"):
        other.bind(ARCHITECTURES["gpt2"]())


def test_observers_of_a_pass_meet_the_module_before_it(tmp_path):
    """Otherwise those after the first would read its labels as aligned, and its sites as the defaults."""
    module = ARCHITECTURES["gpt2"]()
    alone = attach(LearningCurves(name="alone"), SHIFTED_INSIDE, tmp_path).observe(module, 0)
    first, second = (attach(LearningCurves(name=name), SHIFTED_INSIDE, tmp_path) for name in "ab")
    passes = Passes([first, second], module)
    tables = [observer.observe(module, 0, passes) for observer in (first, second)]
    assert [whole_of(table) for table in tables] == [whole_of(alone)] * 2


def test_frequencies_are_counted_of_the_words_that_are_predicted(tmp_path):
    for number, probe in enumerate((SHIFTED_INSIDE, PAIRS)):
        observer = attach(Sparsity(name=f"s{number}"), probe, tmp_path)
        table = observer.observe(LLAMA(), 0)
        counts = table[table["quantity"].eq("frequency")]["value"]
        assert counts.sum() == IDS[:, :, 1:].numel()


def test_masked_models_and_labels_equal_to_inputs(tmp_path):
    module = ARCHITECTURES["bert"]()
    with pytest.raises(ValueError, match=r"learning_curves: .*mask the labels.*`labels: aligned`"):
        attach(LearningCurves(), SHIFTED_INSIDE, tmp_path).bind(module)
    with pytest.raises(ValueError, match=r"expected `labels` in the .*DataCollatorForLanguageModeling"):
        attach(LearningCurves(), list(IDS), tmp_path).bind(module)
    table = attach(AttentionPatterns(), list(IDS), tmp_path).observe(module, 0)  # which reads no labels
    assert table["value"].notna().any()


class Other(nn.Module):
    """Names and answers of its own."""

    def __init__(self, answer):
        super().__init__()
        self.model, self.answer = ARCHITECTURES["nanogpt"](), answer

    def forward(self, **batch):
        logits, loss = self.model(batch["tokens"], batch["tokens"])
        return {
            "tuple": (loss, logits),
            "dict": {"scores": logits, "loss": loss},
            "flat": logits.flatten(0, 1),
        }[self.answer]


@pytest.mark.parametrize("answer", ["tuple", "dict", "flat"])
def test_names_and_answers_of_ones_own(answer, tmp_path):
    module, plain = Other(answer).eval(), ARCHITECTURES["nanogpt"]()
    names = {"input_ids": "tokens", "labels": "next_tokens"}
    probe = [{"tokens": x, "next_tokens": y, "weight": torch.ones(3)} for x, y in PAIRS]
    table = attach(LearningCurves(batch=names), probe, tmp_path).observe(module, 0)
    expected = attach(LearningCurves(name="plain"), PAIRS, tmp_path).observe(plain, 0)
    pd.testing.assert_frame_equal(table, expected)
    with pytest.raises(ValueError, match=r"a dict of \{tokens: int64 .* Set `batch:"):
        attach(LearningCurves(bands=()), [{"tokens": x, "idx": y} for x, y in PAIRS], tmp_path).bind(module)


def by_hand(module, batch):
    return module.embedding(batch["input_ids"])


@pytest.mark.parametrize("forward", [by_hand, f"{__name__}.by_hand"])
def test_forward_is_a_function_or_its_path(forward, tmp_path):
    class Uncallable(Copies):
        def forward(self, one, two, three):
            raise NotImplementedError

    observer = attach(LearningCurves(forward=forward, labels="next"), SHIFTED_INSIDE, tmp_path)
    assert observer.settings["forward"].endswith("by_hand")
    assert whole_of(observer.observe(Uncallable(), 0)) > 0


class Tokenizer:
    all_special_ids = ()

    def __len__(self):
        return VOCABULARY + 1


class Once(IterableDataset):
    """Batches that are not there again."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __iter__(self):
        return self.batches


def test_data_that_has_been_read_is_no_observation_of_nothing(tmp_path):
    module, probe = LLAMA(), DataLoader(Once([{"input_ids": ids} for ids in [*IDS] * 6]), batch_size=None)
    observer = attach(Geometry(), probe, tmp_path)
    observer.bind(module)
    with pytest.raises(ValueError, match="the probe set is empty"):
        for step in range(3):
            observer.observe(module, step)


def test_what_cannot_be_observed_is_one_error_before_training(tmp_path):
    llama, gpt2 = LLAMA(), ARCHITECTURES["gpt2"]()
    ids, wrong = IDS[0], {"labels": "aligned"}

    def bind(module, probe=PAIRS, tokenizer=None, **settings):
        observer = LearningCurves(**{"bands": (), "layers": (), **settings})
        attach(observer, probe, tmp_path, tokenizer=tokenizer).bind(module)

    assert_refused(
        bind,
        ({"module": llama, "probe": []}, "the probe set is empty"),
        ({"module": nn.Linear(2, 2)}, r"lmdyn could not call Linear .* a dict of \{input_ids: int64"),
        ({"module": llama.model}, r"expected an output with `\.logits`.*pass `forward:` to the observer"),
        ({"module": llama, "probe": [(ids, ids[:, :4])]}, r"a tuple of \[int64 \(3, 12\), int64 \(3, 4\)\]"),
        ({"module": gpt2, "probe": [(i, torch.ones_like(i)) for i in IDS]}, "Set `batch"),  # a mask
        (
            {"module": llama, "probe": [{"input_ids": ids, "labels": ids[:, :4]}]},
            r"LlamaForCausalLM returns logits \(3, 12, 256\) for labels \(3, 4\)",
        ),
        (
            {"module": llama, "probe": [{"input_ids": ids + 200, "labels": ids}]},
            "token ids go up to .*, but an embedding of LlamaForCausalLM has 256 rows.*resize_token_embeddings",
        ),
        (
            {"module": llama, "probe": [{"input_ids": ids, "labels": ids + 200}]},
            "labels go up to .*, but LlamaForCausalLM returns 256 classes",
        ),
        ({"module": llama, "probe": list(IDS), **wrong}, r"requires batches with `labels`, got input_ids"),
        (
            {"module": gpt2, "tokenizer": Tokenizer()},
            "the tokenizer has 257 tokens, but an embedding of .* 256",
        ),
        ({"module": Softmax()}, "Softmax returns probabilities, but lmdyn expects logits"),
    )
    bind(llama, list(IDS), labels="next")


def test_sites_that_match_nothing(tmp_path):
    assert_refused(
        lambda sites: attach(Sparsity(sites=sites), PAIRS, tmp_path).bind(LLAMA()),
        ("*.nothing.*", "nothing"),
        ({"sites": {"x": "model.layer.0"}}, "did you mean|nearest|model.layers.0"),
    )


def test_sites_by_a_pattern(tmp_path):
    observer = attach(Similarity(sites="*.layers.*"), PAIRS, tmp_path)
    table = observer.observe(LLAMA(), 0)
    assert set(table["site"]) == {"layers_00"}
    assert observer.settings["sites"] == {"layers_00": "model.layers.0", "layers_01": "model.layers.1"}


def test_sites_of_an_encoder_decoder_are_the_encoders(tmp_path):
    module = ARCHITECTURES["t5"]()
    probe = [{"input_ids": i, "labels": i[:, :5].contiguous()} for i in IDS]
    observers = [attach(o, probe, tmp_path) for o in (LearningCurves(), Similarity(), AttentionPatterns())]
    curves, similarity, attention = observe_together(observers, module, 0)
    assert whole_of(curves) == pytest.approx(own_loss(module, IDS.flatten(0, 1)[:, :5]), abs=1e-6)
    assert all(site.startswith(("encoder_", "embedding")) for site in similarity["site"])
    assert attention["value"].notna().all()


def test_defaults_are_what_the_data_has_and_say_what_they_leave_out(tmp_path, caplog):
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        dynamics = attach(EncoderDynamics(), list(IDS), tmp_path)
        clusters = attach(WordClusters(words=50), list(IDS), tmp_path)
        curves = attach(LearningCurves(), list(IDS), tmp_path)
        tables = observe_together([dynamics, clusters, curves], LLAMA(), 0)
    assert all(table["value"].notna().any() for table in tables)
    found = {**dynamics.settings, **clusters.settings, **curves.settings}
    assert (found["length"], found["lengths"], found["sentences"]) == (12, [8], 12)
    assert (found["components"], found["embedding"]) == (32, "model.embed_tokens")
    assert (found["layers"], found["frequency"]) == ([], "probe")
    for said in ("12 sentences of up", "32 components", "no layer 'upos'", "curves: training counts"):
        assert caplog.text.count(said) == 1
    with pytest.raises(ValueError, match="expected 20 sentences of 12 tokens"):
        attach(EncoderDynamics(sentences=20, name="more"), list(IDS), tmp_path)


# ---------------------------------------------------------------- what an attacker and a new user found


class Declares(L.LightningDataModule):
    """A stranger's data, with an attribute that lmdyn's corpora have."""

    objective = "causal"

    def val_dataloader(self):
        rows = [{"input_ids": row, "labels": row} for row in IDS.flatten(0, 1)]
        return DataLoader(rows, batch_size=4)


def test_an_objective_of_a_stranger_s_says_nothing_of_labels(tmp_path):
    observer = LearningCurves()
    observer.attach(Run(tmp_path, datamodule=Declares()))
    assert whole_of(observer.observe(Copies(), 0), "accuracy") < 0.1


def test_labels_that_contradict_the_data_are_refused(tmp_path):
    class Loader(list):
        label_convention = "aligned"

    with pytest.raises(ValueError, match="`labels` is 'next', but the data declares 'aligned'"):
        attach(LearningCurves(labels="next"), Loader(SHIFTED_INSIDE), tmp_path)


@pytest.mark.parametrize("name", ["next", "targets_shifted", "output"])
def test_entries_that_could_be_labels_are_asked_for(name, tmp_path):
    probe = [{"input_ids": x, name: y} for x, y in PAIRS]
    with pytest.raises(ValueError, match=rf"no `labels`, but have {name} with.*`batch: {{labels: {name}}}`"):
        attach(LearningCurves(), probe, tmp_path).bind(ARCHITECTURES["gpt2"]())
    named = {"input_ids": "input_ids", "labels": name}
    module = ARCHITECTURES["gpt2"]()
    table = attach(LearningCurves(batch=named, name="named"), probe, tmp_path).observe(module, 0)
    expected = attach(LearningCurves(name="pairs"), PAIRS, tmp_path).observe(module, 0)
    assert whole_of(table) == whole_of(expected)


class Masks:
    """A collator that draws, from the global generator or from one of its own."""

    def __init__(self, seed=None):
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        ids = torch.stack(rows)
        masked = torch.rand(ids.shape, generator=self.generator) < 0.3
        return {"input_ids": ids.masked_fill(masked, 2), "labels": ids.masked_fill(~masked, -100)}


@pytest.mark.parametrize("seed", [None, 7])
def test_masks_are_the_same_at_each_observation_and_the_collator_s_are_left_alone(seed, tmp_path):
    collate = Masks(seed)
    loader = DataLoader(list(IDS.flatten(0, 1)), batch_size=4, collate_fn=collate)
    observer = attach(LearningCurves(), loader, tmp_path)
    module = ARCHITECTURES["bert"]()
    torch.manual_seed(1)
    state = torch.get_rng_state(), collate.generator and collate.generator.get_state()
    first = observer.observe(module, 0)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert seed is None or torch.equal(collate.generator.get_state(), state[1])
    torch.rand(5)
    list(loader)  # the training goes on
    pd.testing.assert_frame_equal(observer.observe(module, 0), first, check_exact=True)


def test_a_subset_is_looked_at_and_nothing_else(tmp_path):
    rows = list(IDS.flatten(0, 1))
    loader = DataLoader(rows, batch_size=4, sampler=SubsetRandomSampler([5, 1, 2]))
    table = attach(LearningCurves(), loader, tmp_path).observe(ARCHITECTURES["gpt2"](), 0)
    alone = attach(LearningCurves(name="alone"), [torch.stack([rows[i] for i in (1, 2, 5)])], tmp_path)
    assert whole_of(table) == pytest.approx(whole_of(alone.observe(ARCHITECTURES["gpt2"](), 0)), abs=1e-7)


def test_labels_below_zero_and_integers_of_any_width(tmp_path):
    expected = attach(LearningCurves(), PAIRS, tmp_path).observe(ARCHITECTURES["nanogpt"](), 0)
    for number, kind in enumerate((torch.int32, torch.uint16, torch.int16)):
        narrow = [(x.to(kind), y.to(kind)) for x, y in PAIRS]
        observer = attach(LearningCurves(name=f"k{number}"), narrow, tmp_path)
        assert whole_of(observer.observe(ARCHITECTURES["nanogpt"](), 0)) == whole_of(expected)
    ignored = [(x, y.masked_fill(torch.arange(11) < 5, -1)) for x, y in PAIRS]  # as nanoGPT ignores them
    found = attach(LearningCurves(name="ignored"), ignored, tmp_path).observe(ARCHITECTURES["nanogpt"](), 0)
    assert whole_of(found) > 0
    assert whole_of(found) != whole_of(expected)


def test_labels_may_begin_late(tmp_path):
    unlabelled = [{"input_ids": i, "labels": torch.full_like(i, -100)} for i in IDS]
    observer = attach(LearningCurves(), [*unlabelled, *unlabelled, *SHIFTED_INSIDE], tmp_path)
    observer.bind(LLAMA())
    assert observer.convention == "next"


def test_several_loaders(tmp_path):
    loader = DataLoader(list(IDS.flatten(0, 1)), batch_size=4)
    with pytest.raises(ValueError, match="expected one loader, got 2: pass one loader to the observer"):
        attach(LearningCurves(), [loader, loader], tmp_path)
    attach(LearningCurves(), [loader], tmp_path).bind(ARCHITECTURES["gpt2"]())
    with pytest.raises(ValueError, match="`batch` names input_idz, but no `input_ids`"):
        attach(LearningCurves(batch={"input_idz": "ids"}), [{"ids": i} for i in IDS], tmp_path)

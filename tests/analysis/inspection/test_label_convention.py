"""Labels of either convention, of Hugging Face's collators and of nobody's, against transformers' own losses."""

import copy

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn

from lmdyn.analysis.inspection.forward import call_module, logits_of, token_losses
from lmdyn.analysis.inspection.label_convention import LabelDecision, aligned_labels, label_convention
from lmdyn.models import TwoTowerLanguageModel
from tests.helpers.architectures import ARCHITECTURES, CAUSAL, MASKED, OWN, VOCABULARY, example_batch

FAST_CAUSAL = ("gpt2", "llama", "mixtral", "mamba")
FAST_MASKED = ("bert", "modernbert")


def each(names, fast):
    return [pytest.param(n, marks=() if n in fast else pytest.mark.slow) for n in names]


def tokenizer():
    words = {name: i for i, name in enumerate(["[PAD]", "[BOS]", "[EOS]", "[MASK]"])}
    words |= {f"w{i}": i for i in range(len(words), VOCABULARY)}
    rules = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    rules.pre_tokenizer = WhitespaceSplit()
    names = {f"{n.lower()}_token": f"[{n}]" for n in ("PAD", "BOS", "EOS", "MASK")}
    return hf.PreTrainedTokenizerFast(tokenizer_object=rules, **names)


def rows(lengths=(12, 9, 12, 5), seed=1):
    g = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(4, VOCABULARY, (n,), generator=g).tolist()} for n in lengths]


def causal_batch(side="right", lengths=(12, 9, 12, 5)):
    words = tokenizer()
    words.padding_side = side
    return dict(hf.DataCollatorForLanguageModeling(words, mlm=False)(rows(lengths)))


def masked_batch(share=0.3, seed=0):
    collator = hf.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=share, seed=seed)
    return dict(collator(rows()))


def shifted(batch):
    """The same text in lmdyn's own convention: inputs without the last token, labels without the first."""
    return {
        "input_ids": batch["input_ids"][:, :-1],
        "attention_mask": batch["attention_mask"][:, :-1],
        "labels": batch["labels"][:, 1:],
    }


def mean_loss(module, batch, decision):
    with torch.no_grad():
        labels = aligned_labels(batch["labels"], decision.convention)
        losses = token_losses(logits_of(call_module(module, batch)), labels)
    return (losses.sum() / (labels != -100).sum()).item()


def theirs(module, batch):
    with torch.no_grad():
        return module(**batch).loss.item()


# ---------------------------------------------------------------- against transformers' own loss


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", each(CAUSAL, FAST_CAUSAL))
def test_causal_models_with_hugging_faces_collator(name, side):
    module, batch = ARCHITECTURES[name](), causal_batch(side)
    found = label_convention(module, [batch])
    assert (found.convention, found.reading) == ("next", "causal")
    assert mean_loss(module, batch, found) == pytest.approx(theirs(module, batch), rel=1e-6)
    wrong = mean_loss(module, batch, LabelDecision("aligned"))  # the control
    assert abs(wrong - theirs(module, batch)) > 1e-4


@pytest.mark.parametrize("name", each(CAUSAL, FAST_CAUSAL))
def test_causal_models_with_labels_of_the_next_place(name):
    module, batch = ARCHITECTURES[name](), causal_batch()
    own = shifted(batch)
    found = label_convention(module, [own])
    assert (found.convention, found.reading) == ("aligned", "causal")
    assert mean_loss(module, own, found) == pytest.approx(theirs(module, batch), rel=1e-6)


@pytest.mark.parametrize("name", each(OWN, ("nanogpt", "own_lstm")))
def test_users_causal_models_in_either_convention(name):
    module, batch = ARCHITECTURES[name](), causal_batch(lengths=(12, 12))
    found = [label_convention(module, [b]) for b in (batch, shifted(batch))]
    assert [f.convention for f in found] == ["next", "aligned"]
    assert {f.reading for f in found} == {"causal"}
    one, other = (mean_loss(module, b, f) for b, f in zip((batch, shifted(batch)), found, strict=True))
    assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("name", each(MASKED, FAST_MASKED))
def test_masked_models_with_hugging_faces_collator(name):
    module, batch = ARCHITECTURES[name](), masked_batch()
    found = label_convention(module, [batch])
    assert (found.convention, found.reading) == ("aligned", "bidirectional")
    assert mean_loss(module, batch, found) == pytest.approx(theirs(module, batch), rel=1e-6)


@pytest.mark.parametrize("name", each(MASKED, FAST_MASKED))
def test_masked_models_on_text_that_is_not_masked_are_refused(name):
    module, batch = ARCHITECTURES[name](), causal_batch()
    for given in (batch, shifted(batch)):
        with pytest.raises(ValueError, match=r"labels equal the token .*also with `labels: next`.*mlm=True"):
            label_convention(module, [given])


@pytest.mark.parametrize("makes_inputs", [True, False])
def test_t5_with_hugging_faces_collator(makes_inputs):
    module = ARCHITECTURES["t5"]()
    targets = rows((7, 3, 6, 7), seed=2)
    examples = [{**a, "labels": b["input_ids"]} for a, b in zip(rows(), targets, strict=True)]
    batch = dict(hf.DataCollatorForSeq2Seq(tokenizer(), model=module if makes_inputs else None)(examples))
    assert ("decoder_input_ids" in batch) == makes_inputs
    found = label_convention(module, [batch])
    assert (found.convention, found.reading) == ("aligned", "causal")
    assert mean_loss(module, batch, found) == pytest.approx(theirs(module, batch), rel=1e-6)


def test_t5_that_reads_its_labels_unshifted_is_next():
    module, batch = ARCHITECTURES["t5"](), example_batch("t5")
    batch["labels"] = batch["decoder_input_ids"].clone()
    assert label_convention(module, [batch]).convention == "next"


@pytest.mark.parametrize(
    ("tower", "labels", "expected"),
    [
        ("elmo", "same", ("aligned", "bidirectional")),
        ("gpt", "same", ("next", "causal")),
        ("gpt", "next", ("aligned", "causal")),
        ("bert", "masked", ("aligned", "bidirectional")),
    ],
)
def test_two_towers(tower, labels, expected):
    torch.manual_seed(0)
    module = TwoTowerLanguageModel(tower, hidden_size=8, num_layers=1, vocab_size=VOCABULARY).eval()
    whole = causal_batch(lengths=(12, 12, 12))
    batch = {"same": whole, "next": shifted(whole), "masked": masked_batch()}[labels]
    found = label_convention(module, [batch])
    assert (found.convention, found.reading) == expected
    assert found.warning == ""


# ---------------------------------------------------------------- models that copy, or do nothing


class Copying(nn.Module):
    """Answers the token it has just read, surely."""

    def __init__(self, vocabulary=20):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary, _weight=20 * torch.eye(vocabulary))

    def forward(self, input_ids):
        return self.table(input_ids)


def test_a_copying_model_is_warned_of():
    ids = torch.randint(0, 20, (8, 50), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    module = Copying()
    found = label_convention(module, [batch])
    assert found.convention == "next"
    assert "(probability 1.00)" in found.warning
    assert "labels without a shift" in found.warning
    assert mean_loss(module, batch, found) > 10
    assert mean_loss(module, batch, LabelDecision("aligned")) < 1e-5  # the lie


def head_of_zeros():
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    module = hf.GPT2LMHeadModel(
        hf.GPT2Config(**sizes, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    ).eval()
    nn.init.zeros_(module.lm_head.weight)
    return module


def test_head_of_zeros_is_measured_with_another():
    module = head_of_zeros()
    before = copy.deepcopy(module.state_dict())
    for batch, expected in ((causal_batch(), "next"), (shifted(causal_batch()), "aligned")):
        found = label_convention(module, [batch])
        assert (found.convention, found.reading) == (expected, "causal")
        assert "random numbers instead of" in found.reason
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert label_convention(module, [masked_batch()]).reading == "causal"


class Gated(nn.Module):
    """Looks around only through a gate, which is shut at first."""

    def __init__(self, causal):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.gate, self.causal = nn.Parameter(torch.zeros(())), causal

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        around = x.cumsum(1) if self.causal else x.mean(1, keepdim=True)
        return self.head(x + self.gate * around)


def test_a_shut_gate_does_not_make_a_model_causal():
    batch = causal_batch(lengths=(12, 12))
    assert label_convention(Gated(causal=True), [batch]).convention == "next"
    with pytest.raises(ValueError, match="also with `labels: next`"):
        label_convention(Gated(causal=False), [batch])


def test_a_model_on_which_nothing_has_an_effect_is_asked_about():
    module = Copying(VOCABULARY)
    nn.init.ones_(module.table.weight)
    with pytest.raises(ValueError, match="no token changes the logits"):
        label_convention(module, [causal_batch()])
    assert label_convention(module, [masked_batch()]).convention == "aligned"


def test_numbers_that_are_none_are_asked_about():
    module = ARCHITECTURES["llama"]()
    nn.init.constant_(module.lm_head.weight, torch.nan)
    with pytest.raises(ValueError, match=r"not finite .*set `labels: aligned`"):
        label_convention(module, [causal_batch()])
    found = label_convention(module, [masked_batch()])
    assert (found.convention, found.reading) == ("aligned", "unknown")


# ---------------------------------------------------------------- data that is like nobody's


def test_labels_of_the_answer_only():
    """A prompt without labels, as in instruction tuning."""
    batch = causal_batch(lengths=(12, 12))
    batch["labels"] = torch.where(torch.arange(12) < 8, -100, batch["labels"])
    found = label_convention(ARCHITECTURES["llama"](), [batch])
    assert found.convention == "next"


def test_pads_that_have_labels_are_left_out():
    batch = causal_batch("left", lengths=(30, 5, 6))
    batch["labels"] = batch["input_ids"].clone()
    for mask in (batch["attention_mask"], torch.ones_like(batch["input_ids"])):
        assert (
            label_convention(ARCHITECTURES["llama"](), [{**batch, "attention_mask": mask}]).convention
            == "next"
        )


def test_repeats_tell_nothing():
    ids = torch.full((3, 10), 7)
    with pytest.raises(ValueError, match="equal both the token at their position and the next"):
        label_convention(Copying(), [{"input_ids": ids, "labels": ids}])
    told = torch.tensor([[7, 7, 7, 3, 3, 7]])
    found = label_convention(
        Copying(), [{"input_ids": ids, "labels": ids}, {"input_ids": told, "labels": told}]
    )
    assert found.convention == "next"
    assert "2 of 2 labels" in found.reason


def test_labels_that_are_no_tokens_are_those_of_their_place():
    """A tagger's."""
    batch = causal_batch(lengths=(12, 12, 12))
    batch["labels"] = batch["input_ids"] % 3
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, 3))
    found = label_convention(module, [batch])
    assert found.convention == "aligned"
    assert "equal no token" in found.reason


def test_one_place_leaked_is_refused():
    """A mask that is off by one: each logit reads the token it is to predict."""
    module = Copying(VOCABULARY)
    module.forward = lambda input_ids: sum(module.table(input_ids.roll(-k, 1)) for k in (0, 1))
    batch = causal_batch(lengths=(12, 12))
    with pytest.raises(ValueError, match="also with `labels: next`"):
        label_convention(module, [batch])
    found = label_convention(module, [shifted(batch)])
    assert found.convention == "next"  # one place earlier, where the label has not been read


# ---------------------------------------------------------------- what cannot be right


def labelled(change, lengths=(12, 12)):
    """A causal batch with other labels."""
    batch = causal_batch(lengths=lengths)
    return {**batch, "labels": change(batch["labels"])}


def last_only():
    module = Copying(VOCABULARY)
    module.forward = lambda input_ids: module.table(input_ids)[:, -1:]
    return module


@pytest.mark.parametrize(
    ("make", "batch", "message"),
    [
        ("gpt2", labelled(lambda y: y.roll(1, 1)), "one position before them.*also with `labels: next`"),
        ("gpt2", causal_batch(lengths=(1, 1)), "rows are too short"),
        ("gpt2", labelled(lambda y: torch.stack([y[0].roll(-1), y[1]])),
         "of 22 labels, 11 equal the token at their own position, 11 equal"),
        ("llama", labelled(lambda y: y[:, 1:]), "leave out the last input"),
        ("llama", None, "without a batch"),
        (last_only, labelled(lambda y: y), r"a function \(module, batch\) -> logits of all positions"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_right_are_refused(make, batch, message):
    with pytest.raises(ValueError, match=message):
        label_convention(make() if callable(make) else ARCHITECTURES[make](), [batch] if batch else [])


# ---------------------------------------------------------------- no trace


@pytest.mark.parametrize("name", ["gpt2", "jamba", "bert"])
def test_it_leaves_no_trace_and_answers_again_the_same(name):
    module = ARCHITECTURES[name]().train()
    module.get_input_embeddings().eval()
    batch = masked_batch() if name in MASKED else causal_batch()
    given = {k: v.clone() for k, v in batch.items()}
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    weights, modes = copy.deepcopy(module.state_dict()), [m.training for m in module.modules()]
    state = torch.get_rng_state()
    found = label_convention(module, [batch])
    torch.manual_seed(77)
    with torch.no_grad():
        assert label_convention(module, [batch]) == found
    torch.set_rng_state(state)
    label_convention(module, [batch])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, weights[k]) for k, v in module.state_dict().items())
    assert [m.training for m in module.modules()] == modes
    assert all(p.requires_grad and (p.grad == 1).all() for p in module.parameters())
    assert all(torch.equal(v, given[k]) for k, v in batch.items())


@pytest.mark.parametrize(
    "config", [{"pad_token_id": 5, "sizes": 3}, (2, 3), "tiny"], ids=["dict", "tuple", "text"]
)
def test_a_users_config_may_be_anything(config):
    """It is looked at for special tokens; only transformers' is known to be an object with attributes."""
    module = ARCHITECTURES["own_lstm"]()
    module.config = config
    batch = example_batch("own_lstm")
    found = label_convention(module, [{**batch, "labels": batch["input_ids"]}])
    assert found.convention == "next"

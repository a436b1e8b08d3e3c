"""References by name."""

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedTokenizerFast

from lmdyn.callbacks import Checkpoint, Checkpoints, Itself, Previous
from lmdyn.callbacks.observing.reference import named_references


def test_several_checkpoints_are_references_of_their_own():
    given = {
        "taggers": Checkpoints("runs/{}_next", ["upos", "topic"], module="my.Tagger", forward="my.read"),
        "itself": Itself(),
    }
    named = named_references(given)
    assert list(named) == ["upos", "topic", "itself"]
    for name in ("upos", "topic"):
        alone = Checkpoint(f"runs/{name}_next", module="my.Tagger", forward="my.read")
        assert type(named[name]) is Checkpoint
        assert vars(named[name]) == vars(alone)
    assert list(named_references(Checkpoints("{}", ["a"]))) == ["a"]
    assert list(named_references(Previous())) == ["previous"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Checkpoints("runs/upos", ["upos"]), "expected {} in place of each name"),
        (lambda: {}, "expected at least one reference"),
        (lambda: Checkpoints("{}", []), "expected at least one reference"),
        (lambda: {"a/b": Itself()}, "is empty or contains '/'"),
        (lambda: {"a": Itself(), "others": Checkpoints("{}", ["a"])}, "two references have the name 'a'"),
    ],
)
def test_what_cannot_be_named(make, message):
    with pytest.raises(ValueError, match=message):
        named_references(make())


def test_the_tokenizer_of_a_published_checkpoint_is_next_to_its_weights(tmp_path, caplog):
    words = {name: tokenizer_of({word: i for i, word in enumerate(name)}) for name in ("ab", "ba")}
    words["ab"].save_pretrained(tmp_path / "step_5")
    reference = Checkpoint(str(tmp_path / "step_5"))
    reference.foresee(tmp_path / "step_5", nn.Linear(1, 1))
    reference.check(SimpleNamespace(tokenizer=words["ab"]))
    assert not caplog.records
    with pytest.raises(ValueError, match="another tokenizer"):
        reference.check(SimpleNamespace(tokenizer=words["ba"]))


def tokenizer_of(vocabulary):
    model = models.WordLevel(vocabulary, unk_token="a")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="a")

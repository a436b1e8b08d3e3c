import math

import pytest
import torch

from lmdyn.models import LSTMTagger
from tests.models.quiet import trainer

pytestmark = pytest.mark.filterwarnings("ignore:GPU available but not used")

WORDS, TAGS, ROWS, TIME, WINDOWS = 6, 3, 4, 10, 8


class Tagged:
    """Windows whose word w has the tag w % 3; words go round (cyclic) or come at random."""

    def __init__(self, cyclic, seed=0):
        generator = torch.Generator().manual_seed(seed)
        length = TIME * WINDOWS + 1
        self.words = torch.randint(WORDS, (ROWS, length), generator=generator)
        if cyclic:
            self.words = (torch.arange(ROWS)[:, None] + torch.arange(length)) % WORDS
        self.tags = self.words % TAGS
        self.shuffled = self.tags[:, torch.randperm(length, generator=generator)]

    def __len__(self):
        return WINDOWS

    def __iter__(self):
        for i in range(WINDOWS):
            now, following = slice(i * TIME, (i + 1) * TIME), slice(i * TIME + 1, (i + 1) * TIME + 1)
            batch = {"input_ids": self.words[:, now], "labels": self.words[:, following]}
            for name, tags in (("upos", self.tags), ("shuffled_upos", self.shuffled)):
                batch |= {name: tags[:, now], f"target_{name}": tags[:, following]}
            there = torch.ones(ROWS, TIME, dtype=torch.long)
            yield {**batch, "attention_mask": there, "continues": torch.full((ROWS,), i > 0)}


def tagger(**kwargs):
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "num_labels": TAGS, "embedding_size": 16, "hidden_size": 16}
    return LSTMTagger(**(sizes | kwargs))


@pytest.mark.parametrize(
    ("target", "cyclic", "low", "high"),
    [
        ("current", True, 1.0, 1.0),
        ("next", True, 1.0, 1.0),
        ("current", False, 1.0, 1.0),
        ("next", False, 0.2, 0.5),  # the control: random words do not tell the next one's tag
    ],
)
def test_learns_what_the_words_tell(target, cyclic, low, high):
    adam = lambda p: torch.optim.Adam(p, lr=0.03)  # noqa: E731
    model = tagger(target=target, dropout=0.0, gradient_clip_val=5.0, optimizer=adam)
    run = trainer(max_epochs=8)
    run.fit(model, Tagged(cyclic), Tagged(cyclic, seed=1))
    accuracy = run.callback_metrics["val_accuracy"].item()
    assert low <= accuracy <= high
    predicted = torch.cat(run.predict(model, Tagged(cyclic, seed=1)), dim=1)
    tags = Tagged(cyclic, seed=1).tags
    goal = tags[:, 1:] if target == "next" else tags[:, :-1]
    assert (predicted == goal).float().mean().item() == pytest.approx(accuracy)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("target", ["current", "next"])
def test_labels(target, shuffled):
    batch = next(iter(Tagged(cyclic=False)))
    key = ("target_" if target == "next" else "") + ("shuffled_" if shuffled else "") + "upos"
    assert torch.equal(tagger(target=target, shuffled_labels=shuffled).labels_of(batch), batch[key])


def test_accuracy_and_perplexity_are_over_labelled_tokens():
    model, data = tagger(target="current").double().eval(), Tagged(cyclic=False)
    data.tags = data.tags.masked_fill(torch.rand(data.tags.shape) < torch.rand(data.tags.shape[1]), -100)
    log_p = model(data.words[:, :-1]).logits.log_softmax(-1)
    tags = data.tags[:, :-1]
    kept = tags != -100
    loss = -log_p[kept].gather(1, tags[kept][:, None]).mean()
    accuracy = (log_p.argmax(-1) == tags)[kept].double().mean()
    most = tags[kept].bincount().max() / kept.sum()  # what answering one label everywhere scores
    (validated,) = trainer().validate(model, data, verbose=False)
    (tested,) = trainer().test(model, data, verbose=False)
    for name, metrics in (("val", validated), ("test", tested)):
        assert set(metrics) == {f"{name}_{m}" for m in ("loss", "perplexity", "accuracy", "majority")}
        assert metrics[f"{name}_loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert metrics[f"{name}_perplexity"] == pytest.approx(math.exp(loss.item()), rel=1e-6)
        assert metrics[f"{name}_accuracy"] == pytest.approx(accuracy.item(), rel=1e-6)
        assert metrics[f"{name}_majority"] == pytest.approx(most.item(), rel=1e-6)


def test_prediction_leaves_out_padding():
    batch = next(iter(Tagged(cyclic=True)))
    batch["attention_mask"][1, 7:] = 0
    predicted = tagger().eval().predict_step(batch, 0)
    assert torch.equal(predicted == -100, batch["attention_mask"] == 0)

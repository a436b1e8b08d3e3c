"""Output layers of frozen towers: what exchanging and copying towers does, the optimum, and shares of ranks."""

import math

import pytest
import torch
import torch.nn.functional as F

from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, TowerHead, train_tower_heads
from tests.helpers.one_rank import as_rank

V, D, N = 11, 6, 40
HOW = HeadTraining(updates=30, learning_rate=0.01)


def batches(seed: int = 0, number: int = 30, same: bool = False) -> list[Encoded]:
    """Two towers that each tell something else about the token, or the same."""
    g = torch.Generator().manual_seed(seed)
    maps = [torch.randn(V, D, generator=g) for _ in range(2)]
    made = []
    for _ in range(number):
        labels = torch.randint(V, (N,), generator=g)
        noise = torch.randn(2, N, D, generator=g)
        noise[1] *= 2
        x = [maps[k][labels] + noise[k] for k in range(2)]
        labels[:5] = -100
        made.append(Encoded({"one": x[0], "two": x[0] if same else x[1]}, labels))
    return made


def probabilities(heads: dict[str, TowerHead], batch: Encoded) -> dict[str, torch.Tensor]:
    return {
        name: head.target_log_probabilities(batch.encodings[name], batch.labels)
        for name, head in heads.items()
    }


def test_identical_towers_get_identical_heads():
    heads, losses = train_tower_heads(batches(same=True), V, HOW)
    one, two = (heads[name].state_dict() for name in ("one", "two"))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert losses[0] == losses[1]


def test_exchanging_towers_exchanges_heads():
    plain, _ = train_tower_heads(batches(), V, HOW)
    swapped = [Encoded({"one": b.encodings["two"], "two": b.encodings["one"]}, b.labels) for b in batches()]
    other, _ = train_tower_heads(swapped, V, HOW)
    for mine, theirs in (("one", "two"), ("two", "one")):
        a, b = plain[mine].state_dict(), other[theirs].state_dict()
        assert all(torch.equal(a[k], b[k]) for k in a)
    a, b = (plain[name].state_dict() for name in ("one", "two"))
    assert not torch.equal(a["weight"], b["weight"])  # the control: they do differ


def test_losses_fall_to_what_a_tower_tells():
    constant = [
        Encoded({"tells": F.one_hot(b.labels.clamp(min=0), V).float(), "silent": torch.ones(N, V)}, b.labels)
        for b in batches(number=300)
    ]
    heads, losses = train_tower_heads(constant, V, HeadTraining(updates=300, learning_rate=0.02))
    assert losses[0] < 0.05
    assert losses[1] == pytest.approx(math.log(V), abs=0.1)
    found = probabilities(heads, constant[0])
    assert (found["tells"][5:] > found["silent"][5:]).all()


def test_padding_and_shares_of_ranks_play_no_part(monkeypatch):
    plain, _ = train_tower_heads(batches(), V, HOW)
    padded = [
        Encoded(
            {name: torch.cat([x, torch.full((7, D), 3.0)]) for name, x in b.encodings.items()},
            torch.cat([b.labels, torch.full((7,), -100)]),
        )
        for b in batches()
    ]
    again, _ = train_tower_heads(padded, V, HOW)
    for name in plain:
        torch.testing.assert_close(plain[name].weight, again[name].weight, rtol=0, atol=2e-5)
    # two ranks with the same half of each batch: sums are twice those of one, and means the same
    half = [Encoded({n: x[::2] for n, x in b.encodings.items()}, b.labels[::2]) for b in batches()]
    alone, _ = train_tower_heads(half, V, HOW)
    with as_rank(all_reduce_sum=lambda t: 2 * t):
        both, _ = train_tower_heads(half, V, HOW)
    torch.testing.assert_close(alone["one"].weight, both["one"].weight, rtol=0, atol=2e-5)


def test_first_update_is_adams(monkeypatch):
    """One update against PyTorch's own Adam on the plain loss of all logits."""
    batch = batches(number=1)[0]
    how = HeadTraining(updates=1, learning_rate=0.01, weight_decay=0.0)
    heads, losses = train_tower_heads([batch], V, how)
    plain = TowerHead(D, V, how.init_range, how.seed)
    optimizer = torch.optim.Adam(plain.parameters(), lr=how.rate(0), betas=how.betas)
    logits = F.linear(plain(batch.encodings["one"]), plain.weight, plain.bias)
    loss = F.cross_entropy(logits, batch.labels)
    loss.backward()
    optimizer.step()
    assert how.rate(0) == 0.01
    assert losses[0].item() == pytest.approx(loss.item(), rel=1e-6)
    for name, value in heads["one"].state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=0, atol=1e-5)


def mean_loss(head: TowerHead, name: str, held: list[Encoded]) -> float:
    total = sum(float(head.loss(b.encodings[name], b.labels)) for b in held)
    return total / sum(int((b.labels != -100).sum()) for b in held)


PATIENT = HeadTraining(updates=5000, learning_rate=0.02, patience=2)


@pytest.mark.slow
def test_heads_are_trained_until_they_stop_improving():
    text, asked = batches(number=40), 0
    held = batches(number=48)[40:]  # of the same maps, after those that are trained on

    def counted():
        nonlocal asked
        while True:
            for batch in text:
                asked += 1
                yield batch

    heads, _ = train_tower_heads(counted(), V, PATIENT, lambda: held)
    assert 300 <= asked < 5000  # two halvings after a first look, and long before the bound
    assert asked % 100 == 0
    short, _ = train_tower_heads(text * 3, V, HeadTraining(updates=100, learning_rate=0.02))
    longer, _ = train_tower_heads(text * 25, V, HeadTraining(updates=1000, learning_rate=0.02))
    for name in ("one", "two"):
        found, fewer, more = (mean_loss(h[name], name, held) for h in (heads, short, longer))
        assert found < fewer - 0.02  # the control: a hundred updates do not do
        assert found < more + 0.05  # there is hardly anything to be had from more
        assert not any(p.requires_grad for p in heads[name].parameters())


def test_patience_needs_text_that_is_held_out():
    with pytest.raises(ValueError, match="held-out text"):
        train_tower_heads(batches(), V, HeadTraining(updates=30, patience=1))
    with pytest.raises(ValueError, match="patience"):
        HeadTraining(patience=0)
    nothing, _ = train_tower_heads(batches(number=40) * 10, V, HeadTraining(updates=400, patience=1), list)
    assert nothing["one"].weight.isfinite().all()  # no labels are held out: it ends at the first look

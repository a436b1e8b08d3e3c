"""Shapley interaction of all pairs: what the theory says of games, enumeration as oracle, and what drawing costs."""

import itertools
import math

import pytest
import torch
from torch import nn

from lmdyn.analysis import pairwise_shapley_interaction, reading_of

SLOW_BIDIRECTIONAL = pytest.param("bidirectional", marks=pytest.mark.slow)
TIME = 6
ONES, ZERO = torch.ones(1, TIME, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)


def everywhere(v):
    """A game (rows, time) bool -> (rows, d), answered at each position."""
    return lambda x: v(x[..., 0] != 0)[:, None].expand(-1, x.shape[1], -1)


def unanimity(*members):
    return lambda there: there[:, list(members)].all(1, keepdim=True).double()


def of(forward, inputs=ONES, max_distance=TIME - 1, **settings):
    return pairwise_shapley_interaction(forward, inputs, max_distance, **{"baseline": ZERO, **settings})


def pairs(time=TIME, max_distance=TIME):
    return [(l, r) for l, r in itertools.combinations(range(time), 2) if r - l <= max_distance]  # noqa: E741


def recurrent(reading="causal", size=5, seed=0, gain=3.0):
    """A random LSTM of one or two directions over embeddings of 20 ids."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        table = torch.randn(20, 4, dtype=torch.float64)
        lstm = nn.LSTM(4, size, batch_first=True, bidirectional=reading != "causal").double()
    for p in lstm.parameters():
        p.data *= gain
    return lambda ids: lstm(table[ids])[0].detach()


def sentences(rows=2, time=TIME, seed=0):
    return torch.randint(1, 20, (rows, time), generator=torch.Generator().manual_seed(seed))


def enumerated(v, left, right, players):
    """Σ_S w(S) δ(S) term by term; v of a set of players."""
    n, others = len(players), [p for p in players if p not in (left, right)]
    total = 0
    for size in range(n - 1):
        weight = 2 / n / math.comb(n - 1, size)
        for s in map(set, itertools.combinations(others, size)):
            total = total + weight * (v(s | {left, right}) - v(s | {left}) - v(s | {right}) + v(s))
    return total


def relative(forward, ids, left, right, reading="causal"):
    """‖I‖ / ‖v(N)‖ of one pair, one call a coalition."""
    players = list(range(right + 1 if reading == "causal" else len(ids)))

    def v(there):
        row = torch.tensor([int(i) if p in there or p not in players else 0 for p, i in enumerate(ids)])
        return forward(row[None])[0, right]

    return float(enumerated(v, left, right, players).norm() / v(set(players)).norm())


class TestGames:
    @pytest.mark.parametrize("how", [{}, {"exact_up_to": 0, "samples": 8}])
    @pytest.mark.parametrize("reading", ["causal", "bidirectional"])
    def test_additive_game_is_0(self, how, reading):
        weight = torch.randn(TIME, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        there = everywhere(lambda there: there.double() @ weight + 2)
        found = of(
            there if reading == "bidirectional" else lambda x: (x * weight).cumsum(1) + 2,
            reading=reading, **how,
        )  # fmt: skip
        values = torch.stack([found.value[0, left, right - left - 1] for left, right in pairs()])
        assert values.shape == (15,)
        assert float(values.max()) < 1e-7  # of a square that is 1e-16
        assert int(found.value.isnan().sum()) == found.value.numel() - 15

    @pytest.mark.parametrize("members", [(1, 4), (0, 2, 3), (0, 1, 2, 5), (0, 1, 2, 3, 4, 5)])
    def test_unanimity_game(self, members):
        size = len(members)
        expected = 1 / math.comb(size, 2)
        found = of(everywhere(unanimity(*members)), reading="bidirectional")
        for left, right in pairs():
            inside = {left, right} <= set(members)
            at = (0, left, right - left - 1)
            assert float(found.value[at]) == pytest.approx(expected if inside else 0, abs=1e-14)
        assert bool((found.standard_error.nan_to_num() == 0).all())
        assert bool(found.exact[0, 0].all())

    def test_all_of_the_game_is_divided_among_words_and_pairs(self):
        """v(N) − v(∅) = Σ_i [v(i) − v(∅)] + Σ_ij I_ij. All δ here are positive."""
        g = torch.Generator().manual_seed(3)
        sets = [s for k in (1, 2, 3, 5) for s in itertools.combinations(range(TIME), k)]
        weight = torch.rand(len(sets), generator=g, dtype=torch.float64)

        def v(there):
            return 2 + sum(w * unanimity(*s)(there) for w, s in zip(weight, sets, strict=True))

        alone = sum(float(w) for w, s in zip(weight, sets, strict=True) if len(s) == 1)
        found = of(everywhere(v), reading="bidirectional").value
        whole = 2 + float(weight.sum())
        assert alone + whole * float(found[~found.isnan()].sum()) == pytest.approx(whole - 2, rel=1e-12)


class TestAgainstEnumeration:
    @pytest.mark.parametrize("reading", ["causal", SLOW_BIDIRECTIONAL])
    def test_every_pair(self, reading):
        ids, forward = sentences(), recurrent(reading)
        found = pairwise_shapley_interaction(forward, ids, 3, baseline=0, reading=reading)
        assert found.value.shape == (2, TIME, 3)
        for row, (left, right) in itertools.product(range(2), pairs(max_distance=3)):
            expected = relative(forward, ids[row], left, right, reading)
            assert float(found.value[row, left, right - left - 1]) == pytest.approx(expected, rel=1e-10)
        there = torch.arange(TIME)[:, None] + torch.arange(1, 4) < TIME
        assert torch.equal(~found.value.isnan(), there.expand(2, -1, -1))

    @pytest.mark.parametrize("how", [{}, {"exact_up_to": 3, "samples": 4000}])
    @pytest.mark.parametrize("reading", ["causal", "bidirectional"])
    def test_words_of_several_tokens_and_tokens_that_stay(self, reading, how):
        """Word 3 has no token, the first and the last token are no word's."""
        words = torch.tensor([[-1, 0, 0, 1, 2, 2, 2, 4, -1]])
        ids, forward = sentences(1, 9), recurrent(reading)
        found = pairwise_shapley_interaction(
            forward, ids, 2, baseline=0, words=words, reading=reading, max_rows=500, **how
        )
        assert found.value.shape == (1, 5, 2)
        ends = {0: 2, 1: 3, 2: 6, 4: 7}
        for left, right in itertools.combinations(ends, 2):
            if right - left > 2:
                continue
            players = [w for w in ends if reading != "causal" or w <= right]

            def v(there, at=ends[right], players=players):
                gone = [w in players and w not in there for w in words[0].tolist()]
                return forward(torch.where(torch.tensor([gone]), 0, ids))[0, at]

            expected = enumerated(v, left, right, players).norm() / v(players).norm()
            got, error = (v[0, left, right - left - 1] for v in (found.value, found.standard_error))
            assert abs(float(got - expected)) <= 4 * float(error) + 1e-12
        assert found.value[0, 3].isnan().all()
        assert found.value[0, 2, 0].isnan()

    def test_several_outputs_of_one_pass(self):
        ids, forward = sentences(), recurrent()
        both = pairwise_shapley_interaction(
            lambda x: {"h": forward(x), "exp": forward(x).exp()}, ids, 2, baseline=0
        )
        assert list(both) == ["h", "exp"]
        for name, f in (("h", forward), ("exp", lambda x: forward(x).exp())):
            one = pairwise_shapley_interaction(f, ids, 2, baseline=0)
            torch.testing.assert_close(both[name].value, one.value, equal_nan=True)
        assert not torch.allclose(both["h"].value, both["exp"].value, equal_nan=True)


class TestDraws:
    @pytest.mark.parametrize("reading", ["causal", SLOW_BIDIRECTIONAL])
    def test_stated_error_is_that_of_repetitions_and_covers(self, reading):
        ids, forward, seeds = sentences(1, 7), recurrent(reading), 60

        def found(**how):
            return pairwise_shapley_interaction(forward, ids, 4, baseline=0, reading=reading, **how)

        exact = found().value
        assert found().exact[0, 0].all()
        runs = [found(exact_up_to=0, samples=64, seed=seed, max_rows=4096) for seed in range(seeds)]
        errors = torch.stack([run.standard_error for run in runs])
        drawn = errors.mean(0) > 1e-8  # of three words and fewer, complements leave no error
        assert int(drawn.sum()) >= 10
        values = torch.stack([run.value for run in runs])[:, drawn]
        errors, exact = errors[:, drawn], exact[drawn]
        rms = (values - exact).square().mean(0).sqrt()
        assert float((rms / errors.square().mean(0).sqrt()).mean()) == pytest.approx(1, abs=0.2)
        scores = (values - exact).abs() / errors
        assert 0.87 < float((scores < 2).double().mean()) < 0.99
        bias = (values.mean(0) - exact) / (rms / math.sqrt(seeds))
        assert float(bias.abs().mean()) < 1.8  # 0.8 of noise alone
        assert float((values / exact - 1).abs().mean()) < 0.15

    def test_exact_where_few_are_visible(self):
        found = pairwise_shapley_interaction(
            recurrent(), sentences(), 5, baseline=0, exact_up_to=4, samples=8
        )
        whole = pairwise_shapley_interaction(recurrent(), sentences(), 5, baseline=0)
        for left, right in pairs():
            at = (slice(None), left, right - left - 1)
            assert bool((found.exact[at] == (right < 4)).all())
            # the draws of the second sentence, with a word twice, agree but for rounding
            assert bool(found.standard_error[at][0] > 0) == (right >= 4)
            if right < 4:
                assert not found.standard_error[at].any()
                torch.testing.assert_close(found.value[at], whole.value[at])
        both = pairwise_shapley_interaction(
            recurrent("bidirectional"), sentences(), 5, baseline=0, reading="bidirectional", exact_up_to=5
        )
        assert not both.exact.any()

    def test_seeds(self):
        state = torch.get_rng_state()
        ids = sentences(1).expand(3, -1)
        settings = {"baseline": 0, "exact_up_to": 0, "samples": 8}
        one = pairwise_shapley_interaction(recurrent(), ids, 3, seed=[5, 6, 5], **settings).value
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(one[0].nan_to_num(), one[2].nan_to_num())
        assert not torch.equal(one[0].nan_to_num(), one[1].nan_to_num())
        other = pairwise_shapley_interaction(recurrent(), ids, 3, seed=5, **settings).value
        torch.testing.assert_close(one[:2], other[:2], equal_nan=True)


class TestRows:
    @pytest.mark.parametrize("how", [{}, {"exact_up_to": 3, "samples": 8}])
    @pytest.mark.parametrize("reading", ["causal", "bidirectional"])
    def test_how_rows_are_batched_does_not_matter(self, how, reading):
        ids, forward, calls = sentences(4, 7), recurrent(reading), []

        def counted(x):
            assert not torch.is_grad_enabled()
            calls.append(len(x))
            return forward(x)

        settings = {"baseline": 0, "reading": reading, **how}
        whole = pairwise_shapley_interaction(counted, ids, 4, max_rows=10_000, **settings)
        for max_rows in (5, 13, 100):
            calls.clear()
            found = pairwise_shapley_interaction(counted, ids, 4, max_rows=max_rows, **settings)
            assert max(calls) <= max_rows
            torch.testing.assert_close(found.value, whole.value, rtol=1e-10, atol=1e-12, equal_nan=True)
            torch.testing.assert_close(found.standard_error, whole.standard_error, equal_nan=True)
        for row in range(4):
            alone = pairwise_shapley_interaction(counted, ids[row : row + 1], 4, seed=[row], **settings)
            torch.testing.assert_close(alone.value[0], whole.value[row], equal_nan=True)

    def test_pairs_share_their_coalitions(self):
        rows = []

        def counted(x):
            rows.append(len(x))
            return recurrent()(x)

        pairwise_shapley_interaction(counted, sentences(1), 5, baseline=0)
        # v(N), and all pairs at all positions; one by one: 4 · Σ 2^(n - 2) · (n - 1)
        assert sum(rows) == 1 + 2**TIME
        rows.clear()
        pairwise_shapley_interaction(counted, sentences(1), 5, baseline=0, exact_up_to=0, samples=32)
        assert sum(rows) == 1 + 32 * (1 + TIME + 15)


class TestReading:
    def test_what_a_model_sees_is_measured(self):
        ids = sentences(3)
        assert reading_of(recurrent(), ids) == "causal"
        assert reading_of(recurrent("bidirectional"), ids) == "bidirectional"
        faint = recurrent("bidirectional")
        once = recurrent()
        assert reading_of(lambda x: once(x) + 1e-4 * faint(x)[..., 5:], ids) == "bidirectional"

        def noisy(x):  # rounding differs from call to call
            return once(x) * (1 + 1e-9 * torch.rand(1, dtype=torch.float64))

        assert reading_of(noisy, ids) == "causal"
        named = lambda x: {"h": once(x), "g": faint(x)}  # noqa: E731
        assert reading_of(named, ids) == "bidirectional"
        with pytest.raises(ValueError, match="two or more positions"):
            reading_of(once, ids[:, :1])


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"exact_up_to": 40}, r"at most 20, got 40, which requires 2\^40 coalitions"),
            ({"words": torch.tensor([[0, 1, 1, 0, 2, 3]] * 2)}, "number the words along the sentence"),
            ({"seed": [1, 2, 3]}, "seed is a list of 3: expected one number, or a list of 2"),
            ({"forward": lambda ids: torch.full((*ids.shape, 2), torch.nan)}, "returned NaN or infinite"),
        ],
    )
    def test_one_for_each(self, settings, match):
        given = {"forward": recurrent(), "inputs": sentences(), "max_distance": 2, "baseline": 0} | settings
        with pytest.raises(ValueError, match=match):
            pairwise_shapley_interaction(
                given.pop("forward"), given.pop("inputs"), given.pop("max_distance"), **given
            )

    def test_sentences_without_pairs_are_empty(self):
        found = pairwise_shapley_interaction(recurrent(), sentences(2, 1), 3, baseline=0)
        assert found.value.shape == (2, 1, 3)
        assert found.value.isnan().all()

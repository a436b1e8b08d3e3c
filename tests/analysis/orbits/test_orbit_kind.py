"""Kinds of orbits of maps for which they are known, from random starts."""

import math
from collections import Counter

import pytest
import torch

from lmdyn.analysis.dynamics.long_run import long_run
from lmdyn.analysis.orbits.followed_orbits import FollowedOrbits
from lmdyn.analysis.orbits.growth_rate import growth_rate
from lmdyn.analysis.orbits.orbit_kind import KINDS, _Found, _transients, orbit_kind

F64 = torch.float64


def uniform(n, d, low=0.0, high=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, d, generator=g, dtype=F64) * (high - low) + low


def logistic(r):
    return lambda x: r * x * (1 - x)


def henon(x):
    return torch.stack([1 - 1.4 * x[:, 0] ** 2 + x[:, 1], 0.3 * x[:, 0]], 1)


def lorenz(x, h=0.02):
    def v(state):
        x, y, z = state.unbind(1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], 1)

    a = v(x)
    b = v(x + h / 2 * a)
    c = v(x + h / 2 * b)
    return x + h / 6 * (a + 2 * b + 2 * c + v(x + h * c))


def circle(omega, k):
    """The circle map in the plane, its circle attracting."""

    def f(x):
        radius, angle = x.norm(dim=1, keepdim=True), torch.atan2(x[:, 1:], x[:, :1])
        angle = angle + 2 * math.pi * omega + k * angle.sin()
        return (1 + 0.5 * (radius - 1)) * torch.cat([angle.cos(), angle.sin()], 1)

    return f


def product(f, g, d):
    return lambda x: torch.cat([f(x[:, :d]), g(x[:, d:])], 1)


def spiral(rate, angle=0.01, centre=0.0):
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64)
    return lambda x: centre + math.exp(-rate) * (x - centre) @ turn


def embedded(f, d, more=30):
    """Drives contracting dimensions."""
    g = torch.Generator().manual_seed(1)
    rotation = 0.7 * torch.linalg.qr(torch.randn(more, more, generator=g, dtype=F64)).Q
    into = 0.3 * torch.randn(d, more, generator=g, dtype=F64)
    return lambda x: torch.cat([f(x[:, :d]), x[:, d:] @ rotation + x[:, :d] @ into], 1)


def contraction(rate, d=40):
    """A linear map of many directions, turning and flipping, to one point."""
    g = torch.Generator().manual_seed(3)
    a = torch.randn(d, d, generator=g, dtype=F64)
    a, c = a / torch.linalg.eigvals(a).abs().max() * rate, torch.randn(d, generator=g, dtype=F64)
    return lambda x: x @ a.T.to(x.dtype) + c.to(x.dtype)


def swinging(period, depth, mean):
    """A number that grows and shrinks in turn with a slow angle: a torus, of long and strong growth on the way."""

    def f(x):
        angle = torch.atan2(x[:, 2:], x[:, 1:2])
        y = torch.exp(depth * angle.cos() + mean) * x[:, :1] + 0.01 * torch.sin(2 * angle) + 0.01
        angle = angle + 2 * math.pi / period * (1 + 1e-3 * GOLDEN)
        return torch.cat([y, angle.cos(), angle.sin()], 1)

    return f


GOLDEN = (math.sqrt(5) - 1) / 2
MAPS = {  # the map, dimensions and range of starts, whether it is embedded, its kind, whether T tells it
    "logistic map at full chaos": (logistic(4.0), 1, 0, 1, False, "chaotic", True),
    "logistic map at r = 3.57, λ = 0.011": (logistic(3.57), 1, 0, 1, True, "chaotic", True),
    "Hénon": (henon, 2, -0.1, 0.1, False, "chaotic", True),
    "Lorenz": (lorenz, 3, -10, 10, False, "chaotic", True),
    "circle map": (circle(GOLDEN, 0.5), 2, -1, 1, True, "torus", True),
    "slow torus of two frequencies": (
        product(circle(0.0075, 0.0025), circle(0.0075 * math.sqrt(2), 0.0025), 2), 4, -1, 1, False, "torus", True,
    ),
    "locked circle map": (circle(0.5, 0.9), 2, -1, 1, False, "cycle", True),
    "cycle of 4": (logistic(3.5), 1, 0, 1, True, "cycle", True),
    "cycle of 3 after intermittency": (logistic(3.83), 1, 0, 1, False, "cycle", True),
    "cycle of 128": (logistic(3.5699), 1, 0, 1, False, "cycle", True),
    "end of the period doublings": (logistic(3.569945672), 1, 0, 1, False, "none of them", False),
    "marginal fixed point": (logistic(3.0), 1, 0, 1, False, "fixed point", False),
    "spiral": (spiral(1e-2), 2, -1, 1, False, "fixed point", True),
    "slow spiral": (spiral(2.5e-3), 2, -1, 1, True, "fixed point", True),
    "slow spiral beside 0": (spiral(2.5e-3, centre=1.0), 2, -1, 1, False, "fixed point", True),
    "flips before a period doubling": (logistic(2.995), 1, 0, 1, False, "fixed point", True),
    "flips of a cycle of 2": (logistic(3.44), 1, 0, 1, False, "cycle", True),
    "turns of a tenth": (spiral(1e-2, 2 * math.pi / 10, 1.0), 2, -1, 1, False, "fixed point", True),
    "contraction of 40 dimensions": (contraction(0.995), 40, -1, 1, False, "fixed point", True),
    "slow swings": (swinging(240, 0.2, -0.025), 3, -1, 1, False, "torus", False),
    "spiral too slow for T": (spiral(2.5e-4), 2, -1, 1, False, "fixed point", False),
}  # fmt: skip


def orbits(name, starts, seed=0, steps=4000):
    f, d, low, high, embed, _, _ = MAPS[name]
    x = uniform(starts, d, low, high, seed)
    if embed:
        f, x = embedded(f, d), torch.cat([x, uniform(starts, 30, -1, 1, seed + 1)], 1)
    return orbit_kind(f, x, steps)


def check(name, found):
    """Of 40 none is of a wrong kind; where T is long enough, hardly any are undetermined."""
    *_, kind, told = MAPS[name]
    counts = Counter(found.kinds)
    right, unknown = counts[kind], counts["undetermined"]
    assert len(found.kinds) - right - unknown <= 0.02 * len(found.kinds), counts
    if told:
        assert right >= 0.95 * len(found.kinds), counts


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_random_starts(name):
    found = orbits(name, 40)
    check(name, found)
    if name == "slow torus of two frequencies":
        assert found.zero_exponents.tolist() == [2] * 40


@pytest.mark.slow
def test_a_torus_has_its_evidence():
    f, x = circle(GOLDEN, 0.5), uniform(3, 2, -1, 1)
    found = orbit_kind(f, x, steps=3000)
    assert found.kinds == ["torus"] * 3
    assert found.zero_exponents.tolist() == [1, 1, 1]
    assert (found.line_change < 1e-3).all()
    assert found.steps.tolist() == [12_000] * 3  # never on the first look
    assert orbit_kind(f, x, steps=3000, follow=1).kinds == ["undetermined"] * 3


@pytest.mark.slow
def test_growth_like_a_power_of_time_is_no_chaos():
    """A shear: perturbations grow in proportion to time, and λT passes 10 without chaos."""

    def shear(x):
        angle = (x[:, :1] + x[:, 1:]) % 1
        return torch.cat([angle, x[:, 1:]], 1)

    found = orbit_kind(shear, uniform(10, 2), tau=50, steps=5000)
    assert "chaotic" not in found.kinds
    assert ((found.exponent > 0) & (found.exponent <= 2 * math.log(20_000) / 20_000)).all()


def test_periods_and_exponents():
    found = orbits("cycle of 4", 5)
    assert found.period.tolist() == [4] * 5
    assert found.length.tolist() == [0] * 5
    assert not found.censored.any()
    chaos = orbits("logistic map at full chaos", 5)
    assert (chaos.exponent - math.log(2)).abs().max() < 0.01
    assert ((chaos.exponent - math.log(2)).abs() < 5 * chaos.error).all()
    assert chaos.length.tolist() == [4000] * 5
    assert chaos.censored.all()


def open_tent(slope):
    """Chaos on [0, 1] that ends at a fixed point once an orbit has left."""

    def f(x):
        inside = torch.where(x < 0.5, slope * x, slope * (1 - x))
        return torch.where((x < 0) | (x > 1), 3 + 0.5 * (x - 3), inside)

    return f


@pytest.fixture(scope="module")
def escapes():
    """The step at which each start has left, and what is found of them."""
    x = uniform(300, 1)
    left, y, f = torch.full((300,), -1), x, open_tent(2.02)
    for t in range(1, 3001):
        y = f(y)
        left = torch.where((left < 0) & ((y[:, 0] < 0) | (y[:, 0] > 1)), t, left)
    assert (left > 0).all()
    return left, orbit_kind(f, x, steps=1000)


class TestTransients:
    def test_all_end_on_the_fixed_point(self, escapes):
        _, found = escapes
        assert found.kinds == ["fixed point"] * 300
        assert not found.censored.any()

    def test_lengths(self, escapes):
        """Of transients long enough for chaos to be told, to the window."""
        left, found = escapes
        told = left > 60
        assert (found.length[told] - left[told]).abs().max() <= 10
        assert (found.length[left < 40] == 0).all()

    def test_the_horizon_censors(self, escapes):
        left, _ = escapes
        found = orbit_kind(open_tent(2.02), uniform(300, 1), steps=100, follow=1)
        still = left > 120
        assert found.censored[still].all()
        assert (found.length[still] == 100).all()


def test_earlier_windows_count():
    """The same orbit, its first half given as exponents."""
    f, x = logistic(4.0), uniform(4, 1)
    first = orbit_kind(f, x, steps=2000, follow=1)
    earlier = torch.full((200, 4), 0.6)
    found = orbit_kind(f, first.final, steps=0, earlier=earlier)
    assert found.kinds == ["chaotic"] * 4
    assert found.exponent.tolist() == pytest.approx([0.6] * 4)
    closed = orbit_kind(logistic(3.2), uniform(4, 1), steps=0, earlier=torch.full((200, 4), -0.2))
    assert closed.kinds == ["cycle"] * 4  # looked for where the earlier windows left off


def slow_and_fast(slow=-0.009, fast=-0.15, d=200):
    """A linear contraction with one slow direction, in which a random perturbation has a small part only."""
    q = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
    rates = torch.full((d,), math.exp(fast), dtype=F64)
    rates[0] = math.exp(slow)
    a, c = (q @ torch.diag(rates) @ q.T).float(), torch.randn(d, generator=torch.Generator().manual_seed(1))
    return lambda x: (x - c) @ a.T + c


@pytest.mark.parametrize("aligned", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_exponent_of_a_closed_orbit_is_that_of_its_slowest_direction(aligned):
    """Gone on from a long run, whose perturbation is handed on, or not; and from a start."""
    f, x = slow_and_fast(), torch.randn(4, 1, 200, generator=torch.Generator().manual_seed(2))
    run = long_run(lambda x: f(x.flatten(1)).reshape(x.shape), x, 10, 5000, end_recurrent=True)
    assert (run.recurred_at >= 0).all()
    found = orbit_kind(
        f, run.final, 0, earlier=run.exponents, tolerance=1e-5,
        perturbation=run.delta_full[:, 0] if aligned else None,
    )  # fmt: skip
    assert found.kinds == ["fixed point"] * 4
    assert (found.exponent + 0.009).abs().max() < 1e-4
    assert found.error.isfinite().all()
    whole = orbit_kind(f, x[:, 0], 5000)
    assert (whole.exponent + 0.009).abs().max() < 1e-4


@pytest.mark.parametrize("rate", [-0.5, -1.1, -2.3])
def test_strong_contraction_is_measured(rate):
    """A window of 20 steps resolves λ above −0.4 only, in float32."""
    found = orbit_kind(lambda x: 1 + math.exp(rate) * (x - 1), uniform(2, 8).float(), 1000, tau=20)
    assert found.kinds == ["fixed point"] * 2
    assert (found.exponent - rate).abs().max() < 1e-3


def test_known_closed_orbits_are_not_followed():
    f = logistic(3.2)
    x = uniform(3, 1)
    for _ in range(500):
        x = f(x)
    earlier = torch.full((50, 3), -0.5)
    for follow in (1, 4):
        found = orbit_kind(f, x, 0, follow=follow, earlier=earlier, closed=torch.tensor([True, True, True]))
        assert found.kinds == ["cycle"] * 3
        assert found.period.tolist() == [2] * 3
        assert found.steps.tolist() == [500] * 3
        # λ of the cycle of 2 is ln |f'(a) f'(b)| / 2 = ln |4 + 2r − r²| / 2
        assert found.exponent.tolist() == pytest.approx([math.log(abs(4 + 6.4 - 3.2**2)) / 2] * 3, abs=1e-3)


def test_exponents_while_chaotic():
    """Of a transient λ before it ended, ln a on the open tent map; none of what was never chaotic."""
    found = orbit_kind(open_tent(2.02), uniform(40, 1, seed=5), 1000)
    long = found.length > 200
    assert long.any()
    assert (found.chaotic_exponent[long] - math.log(2.02)).abs().max() < 0.02
    assert found.chaotic_exponent[found.length == 0].isnan().all()
    chaos = orbits("logistic map at full chaos", 3)
    assert torch.equal(chaos.chaotic_exponent, chaos.exponent)


def test_noise_has_no_kind():
    with pytest.raises(ValueError, match="draws random numbers"):
        orbit_kind(lambda x: 0.5 * x + 1e-3 * torch.randn_like(x), uniform(3, 2), 1000)


@pytest.mark.parametrize(
    "f",
    [lambda x: 1.01 * x, lambda x: x + 1, lambda x: 1.002 * x.flip(1)],
    ids=["growth", "drift", "turning growth"],
)
def test_orbits_that_stay_nowhere_are_undetermined(f):
    assert orbit_kind(f, uniform(5, 2, 0.5, 1), 300).kinds == ["undetermined"] * 5


# within the horizon, or when it is followed
@pytest.mark.parametrize(
    ("rate", "steps"), [(2.0, 2000), (1.5, 500), pytest.param(1.05, 2000, marks=pytest.mark.slow)]
)
def test_growth_to_the_end_of_the_numbers_is_no_chaos(rate, steps):
    """Norms end at 1e154, states go on to 1e308: from there a perturbation would seem to grow by its own loss."""
    x = torch.tensor([[1e-3, 0.0]], dtype=torch.float64)
    found = orbit_kind(lambda x: rate * x, x, steps)
    assert found.kinds == ["undetermined"]
    assert float(found.exponent) == pytest.approx(math.log(rate), rel=1e-6)


def test_unstable_cycles_on_which_the_orbit_stays_exactly():
    def cat(x):
        return torch.stack([(2 * x[:, 0] + x[:, 1]) % 1, x.sum(1) % 1], 1)

    found = orbit_kind(cat, torch.tensor([[0.5, 0.25], [0.0, 0.0], [0.1, 0.2]], dtype=torch.float64), 2000)
    assert found.kinds == ["cycle", "fixed point", "chaotic"]
    assert found.period.tolist() == [3, 1, 0]
    assert found.exponent.tolist() == pytest.approx([math.log((3 + 5**0.5) / 2)] * 3, rel=0.02)
    assert found.length.tolist()[:2] == [0, 0]
    doubling = orbit_kind(lambda x: 2 * x % 1, uniform(3, 1), 2000)  # of 53 binary digits none is left
    assert doubling.kinds == ["fixed point"] * 3
    assert doubling.final.tolist() == [[0.0]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3, 7, 10, 12])
def test_neutral_cycles_are_no_tori(parts):
    """Their sines are not exact, so that rounding moves them on."""
    c, s = math.cos(2 * math.pi / parts), math.sin(2 * math.pi / parts)
    turn = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    found = orbit_kind(lambda x: x @ turn, torch.tensor([[1.0, 0.3]], dtype=torch.float64), 2000)
    assert found.kinds[0] in ("undetermined", "cycle")


def test_a_neutral_turn_that_never_closes_is_a_torus():
    golden = torch.tensor(math.pi * (5**0.5 - 1), dtype=torch.float64)
    c, s = golden.cos(), golden.sin()
    turn = torch.stack([torch.stack([c, s]), torch.stack([-s, c])])
    assert orbit_kind(lambda x: x @ turn, torch.tensor([[1.0, 0.3]], dtype=torch.float64), 2000).kinds == [
        "torus"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 1e-5,
        lambda x: torch.cat([x[:, :1] + 1e-9, 0.5 * x[:, 1:]], 1),  # beside contractions
        lambda x: 1 + (x - 1) * math.exp(-1e-7),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drifts_are_no_tori(f, dtype):
    """Their spectrum is one of lines that stay, and they fill a curve."""
    kinds = orbit_kind(f, uniform(2, 2).to(dtype), 1000).kinds
    assert "torus" not in kinds
    assert "chaotic" not in kinds


def test_maps_that_write_where_states_are():
    buffer = torch.empty(64, 1, dtype=torch.float64)

    def reused(x):
        return torch.mul(3.5 * x, 1 - x, out=buffer[: len(x)])

    x = uniform(2, 1)
    kept = x.clone()
    expected = orbit_kind(lambda x: 3.5 * x * (1 - x), x, 1000)
    for f in (lambda x: x.mul_(1 - x).mul_(3.5), reused):
        found = orbit_kind(f, x, 1000)
        assert found.kinds == expected.kinds == ["cycle", "cycle"]
        assert torch.equal(found.period, expected.period)
    assert torch.equal(x, kept)


@pytest.mark.slow
def test_float32_tells_wide_attractors():
    x = uniform(5, 2, -0.1, 0.1).float()
    assert orbit_kind(henon, x, steps=2000).kinds == ["chaotic"] * 5
    assert orbit_kind(circle(GOLDEN, 0.5), uniform(5, 2, -1, 1).float(), steps=2000).kinds == ["torus"] * 5


@pytest.mark.parametrize(("f", "d"), [(logistic(2.99), 1), (logistic(2.97), 1), (contraction(0.995), 40)])
def test_float32_tells_slow_approaches(f, d):
    x = uniform(10, d).float()
    assert orbit_kind(f, x, steps=4000).kinds == ["fixed point"] * 10


@pytest.mark.slow
def test_float32_takes_no_drift_for_an_end():
    """Beside a tangency the logistic map moves by less than the tolerance a step, for a thousand steps."""
    found = orbit_kind(logistic(1 + math.sqrt(8) - 1e-6), uniform(20, 1).float(), steps=4000)
    assert not {"cycle", "fixed point"} & set(found.kinds)


def test_growth_that_may_be_chaos_before_an_end_is_open():
    """λT = 78, and yet no chaos by its interval: slow swings of λ, as of a network of ALBERT's."""
    swings = torch.tensor([1, 9, 0, 1, 5]) * 1e-3
    swinging = swings.double().repeat_interleave(490)
    steady = torch.full_like(swinging, float(swings.double().mean()))
    falling = torch.full_like(swinging, -0.01)
    end = torch.full((50, 3), -0.007, dtype=F64)
    exponents = torch.cat([torch.stack([swinging, steady, falling], 1), end])
    arrived = torch.full((3,), len(swinging))
    start = torch.full((3, 1), 0.5, dtype=F64)
    orbits = FollowedOrbits(logistic(2.0), start, 10, None, 0, None, exponents, None, None)
    late = growth_rate(exponents, 10, start=arrived)
    for kind, expected in (("fixed point", [True, False, False]), ("undetermined", [True, False, True])):
        kinds = torch.full((3,), KINDS.index(kind))
        length, censored, undetermined, chaotic = _transients(orbits, _Found(kinds, late, arrived))
        assert undetermined.tolist() == expected
        assert length.tolist() == [0, 10 * len(swinging), 0]
        assert censored.tolist() == [False, kind == "undetermined", False]
        assert chaotic.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"steps": 105}, "steps must be a multiple of tau"), ({"follow": 0}, "follow must be at least 1")],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        orbit_kind(logistic(4.0), uniform(2, 1), **options)

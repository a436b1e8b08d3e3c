"""Long trajectories: algorithm A1 as a loop, the switch to the map of one token, what is left out, what is found."""

import math

import numpy as np
import pytest
import torch

from lmdyn.analysis.dynamics.long_run import long_run
from lmdyn.analysis.dynamics.synchronization import deviation
from lmdyn.analysis.orbits.lyapunov import random_perturbation


def logistic(r):
    return lambda x: r * x * (1 - x)


def full_of(one, contraction):
    """Tokens that follow the mean token's map and approach each other."""

    def f(x):
        mean = x.mean(1, keepdim=True)
        return one(mean) + contraction * (x - mean)

    return f


def starts(rows=3, tokens=4, d=1):
    x = torch.rand(rows, tokens, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return 0.3 + 0.4 * x


def network(tokens=4, d=5, gain=2.0):
    weight = (
        torch.randn(d, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * gain / d**0.5
    )
    mix = torch.rand(tokens, tokens, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    mix = mix / mix.sum(1, keepdim=True)
    return lambda x: torch.tanh(mix @ x @ weight)


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_full_map_is_algorithm_a1(batch_size):
    """Each row by itself, in numpy."""
    f, x = network(), starts(3, 4, 5)
    run = long_run(f, x, 5, 60, epsilon=0.1, batch_size=batch_size)
    delta = random_perturbation(x, 0.1, 0)
    for row in range(3):
        here, d = x[row : row + 1], delta[row : row + 1]
        assert abs(float(d.norm()) - 0.1) < 1e-12
        for w in range(12):
            there = here + d
            for _ in range(5):
                here, there = f(here), f(there)
            grown = np.linalg.norm((there - here).numpy())
            assert run.exponents[w, row] == pytest.approx(math.log(grown / 0.1) / 5, abs=1e-9)
            d = (there - here) * (0.1 / grown)
        torch.testing.assert_close(run.final[row], here[0].mean(0), rtol=0, atol=1e-9)
    assert run.switched_at.tolist() == [-1] * 3


@pytest.mark.slow
def test_switch_to_the_map_of_one_token():
    one = logistic(3.9)
    f, x = full_of(one, 0.1), starts()
    run = long_run(f, x, 10, 4000, reduced=one, epsilon=1e-7, keep=30)
    d, state = [], x
    for _ in range(31):
        d.append(deviation(state))
        state = f(state)
    offset = (torch.stack(d) < 1e-5).int().argmax(0)
    assert run.switched_at.tolist() == [10 * -(-t // 10) for t in offset.tolist()]
    for row, step in enumerate(run.switched_at.tolist()):
        w = step // 10
        assert bool(run.exponents[w - 1, row].isnan())  # the window that contains the switch
        assert int(run.exponents[:, row].isnan().sum()) == 1
        torch.testing.assert_close(run.deviations[: w * 10, row], torch.stack(d)[: w * 10, row])
        assert bool(run.deviations[step + 1 :, row].isnan().all())
    # the exponent of the logistic map, from its derivative along an orbit
    orbit, logs = x.mean(1).squeeze(), []
    for _ in range(20000):
        logs.append((3.9 * (1 - 2 * orbit)).abs().log())
        orbit = one(orbit)
    expected = float(torch.stack(logs).mean())
    assert float(run.exponents[10:].mean()) == pytest.approx(expected, abs=0.02)
    full = long_run(f, x, 10, 4000, epsilon=1e-7)
    assert float(full.exponents[10:].mean()) == pytest.approx(expected, abs=0.02)


def test_epsilon_over_the_joint_state():
    """A finite perturbation saturates differently by its size: ε over N equal tokens is ε/√N of one."""
    one = lambda x: x + 0.1 * torch.sin(3 * x)  # noqa: E731
    f, x = full_of(one, 0.0), starts(2, 16, 3)
    full = long_run(f, x, 5, 100, epsilon=2.0)
    run = long_run(f, x, 5, 100, reduced=one, epsilon=2.0)
    assert run.switched_at.tolist() == [5, 5]
    # the windows after the switch begin with the same perturbation in both, at the size of a quarter of ε
    torch.testing.assert_close(run.exponents[1:4], full.exponents[1:4], rtol=0, atol=1e-6)


@pytest.mark.parametrize("reduce", [True, False])
def test_recurrent_trajectories_end(reduce):
    one = logistic(3.2)  # period 2
    x = starts()
    run = long_run(
        full_of(one, 0.1), x, 5, 2000, reduced=one if reduce else None, end_recurrent=True, epsilon=1e-4
    )
    assert bool((run.ended_at > 0).all())
    assert bool((run.ended_at < 2000).all())
    assert bool((run.recurred_at <= run.ended_at).all())
    for row in range(len(x)):
        end = int(run.ended_at[row]) // 5
        assert bool(run.exponents[end:, row].isnan().all())
        values = run.exponents[: end - 1, row]
        # of the period-2 orbit: ½ ln |f'(a) f'(b)| = ½ ln |4 + 2 r − r²|, over two windows of an odd number of steps
        assert float(values[values.isfinite()][-2:].mean()) == pytest.approx(
            0.5 * math.log(abs(4 + 6.4 - 3.2**2)), abs=0.2
        )
    chaotic = long_run(full_of(logistic(3.9), 0.1), x, 5, 2000, reduced=logistic(3.9), end_recurrent=True)
    assert chaotic.recurred_at.tolist() == [-1] * 3


def test_collapsed_perturbations_have_a_bound():
    run = long_run(lambda x: 0.01 * x + 1, starts(2, 4, 3), 20, 80)
    size = 1 / 0.99 * (4 * 3) ** 0.5
    bound = math.log(torch.finfo(torch.float64).eps * size) / 20
    assert run.exponents[1:].flatten().tolist() == pytest.approx([bound] * 6, rel=1e-3)


def test_divergence_is_recorded():
    x = starts(3)
    x[1] = 5.0
    run = long_run(full_of(logistic(3.9), 0.1), x, 10, 100, reduced=logistic(3.9), epsilon=1e-7)
    assert run.diverged.tolist() == [False, True, False]
    assert bool(run.exponents[-1, 1].isnan())
    assert bool(run.exponents[-1, [0, 2]].isfinite().all())


def test_tokens_that_part_are_refused():
    with pytest.raises(ValueError, match="synchronized tokens are unstable"):
        long_run(full_of(torch.tanh, 1.5), starts(2, 4, 5), 5, 100, reduced=torch.tanh)


def test_the_clock_of_recurrence_goes_on_without_rows():
    """One row has ended before the other begins on the reduced map."""
    x = starts(2)
    x[1, 0] += 0.2
    one = lambda x: 0.5 + 0.1 * (x - 0.5)  # noqa: E731
    f = full_of(one, 0.9)
    x[0] = x[0].mean(0)  # synchronized from the start
    run = long_run(f, x, 5, 1000, reduced=one, end_recurrent=True, epsilon=1e-6)
    assert run.ended_at[0] < run.switched_at[1]
    assert run.recurred_at[1] >= run.switched_at[1]

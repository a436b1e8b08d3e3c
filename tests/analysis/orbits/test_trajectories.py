"""iterate and repeat: what is kept, how much is held, and that reduced precision is refused."""

import subprocess
import sys
import weakref

import pytest
import torch

from lmdyn.analysis.orbits.trajectories import check_precision, exact_products, iterate, power_at, repeat


def logistic(x):
    return 3.9 * x * (1 - x)


def start(dtype=torch.float64):
    return torch.tensor([[0.2, 0.3], [0.6, 0.7], [0.1, 0.9]], dtype=dtype)


class TestIterate:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("steps", [0, 7])
    def test_it_is_a_loop(self, steps, dtype):
        states = [start(dtype)]
        for _ in range(steps):
            states.append(logistic(states[-1]))
        found = iterate(logistic, start(dtype), steps, {"x": lambda x: x, "mean": lambda x: x.mean(1)})
        assert torch.equal(found.observables["x"], torch.stack(states))
        assert torch.equal(found.observables["mean"], torch.stack(states).mean(2))
        assert torch.equal(found.final, states[-1])
        assert found.final.dtype == dtype
        assert found.diverged.tolist() == [-1] * 3

    def test_time_is_depth_in_a_sequence_of_maps(self):
        layers = [lambda x, i=i: x * i + 1 for i in range(5)]
        found = iterate(layers, start(), 5, {"x": lambda x: x})
        x = start()
        for t, layer in enumerate(layers):
            assert torch.equal(found.observables["x"][t], x)
            x = layer(x)
        assert torch.equal(found.final, x)
        with pytest.raises(ValueError, match="use at most 5 steps"):
            iterate(layers, start(), 6, {})

    def test_the_first_time_that_is_not_finite(self):
        x = torch.tensor([[2.0], [0.5], [1e30]])
        found = iterate(lambda x: x * x, x, 12, {})
        expected = [next((t for t in range(13) if 2.0 ** (2**t) > 3.4e38), -1), -1, 1]
        assert found.diverged.tolist() == expected
        assert found.final[1].isfinite().all()
        assert iterate(lambda x: x * x, x.log() * torch.nan, 0, {}).diverged.tolist() == [0, 0, 0]

    def test_states_do_not_pile_up(self):
        live, most = weakref.WeakSet(), []

        def watched(x):
            y = logistic(x)
            live.add(y)
            most.append(len(live))
            return y

        iterate(watched, start(), 400, {"first": lambda x: x[:, 0]})  # a view, which would hold its state
        assert max(most) <= 3


class TestRepeat:
    def test_it_is_the_power(self):
        x = start()
        for _ in range(6):
            x = logistic(x)
        assert torch.equal(repeat(logistic, 6)(start()), x)
        assert torch.equal(power_at([logistic] * 9, 6)(start(), 2), x)
        assert not torch.equal(repeat(logistic, 5)(start()), x)
        with pytest.raises(ValueError, match="n must be at least 1, got 0"):
            repeat(logistic, 0)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_as_a_cuda_graph(self):
        weight = torch.randn(64, 64, device="cuda") / 8
        calls = []

        def f(x):
            calls.append(1)
            return torch.tanh(x @ weight)

        with exact_products():
            power = repeat(f, 20)
            for rows in (3, 5, 3, 3):
                x = torch.randn(rows, 64, device="cuda")
                y = x.clone()
                for _ in range(20):
                    y = torch.tanh(y @ weight)
                first = power(x)
                torch.testing.assert_close(first, y)
                power(torch.zeros_like(x))
                torch.testing.assert_close(first, y)  # the result is not overwritten
        assert len(calls) == 2 * 23  # one capture a shape


SETTINGS = [
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.set_float32_matmul_precision('high'); torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
]
SCRIPT = """
import torch
from lmdyn.analysis.orbits.trajectories import exact_products
def settings():
    names = ("mkldnn.matmul", "mkldnn.conv", "cuda.matmul", "cudnn.conv", "cudnn.rnn")
    found = []
    for name in names:
        backend, op = name.split(".")
        found.append(getattr(getattr(torch.backends, backend), op).fp32_precision)
    for read in (torch.get_float32_matmul_precision, lambda: torch.backends.cudnn.allow_tf32):
        try: found.append(read())
        except RuntimeError: found.append("contradictory")
    return found
for setting in SETTINGS:
    exec(setting)
    before = settings()
    with exact_products():
        assert not set(settings()[:-2]) & {"tf32", "bf16"}, setting
    assert settings() == before, setting
    torch.backends.fp32_precision = "none"
    for op in (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul):
        op.fp32_precision = "none"
    torch.backends.mkldnn.conv.fp32_precision = torch.backends.mkldnn.rnn.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
"""


class TestPrecision:
    @pytest.mark.slow
    @pytest.mark.skipif(
        not hasattr(torch.backends, "fp32_precision"), reason="settings of torch 2.9 and later"
    )
    def test_each_reduced_setting_is_exact_inside_and_put_back(self):
        code = SCRIPT.replace("SETTINGS", repr(SETTINGS))  # in a process of its own: the settings are global
        result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr

    def test_autocast(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = iterate(lambda x: x @ torch.eye(2), start(torch.float32), 3, {})
            assert found.final.dtype == torch.float32
            assert torch.is_autocast_enabled("cpu")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
    def test_other_dtypes(self, dtype):
        with pytest.raises(ValueError, match="float32 or float64"):
            check_precision(torch.zeros(2, 2, dtype=dtype))

"""``EncoderDynamics`` on looped and causal models: exact exponents of linear ones, rows that keep their texts."""

import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.long_run import long_run
from lmdyn.callbacks import EncoderDynamics, Run, select
from lmdyn.callbacks.dynamics import encoder_dynamics
from tests.helpers.architectures import VOCABULARY
from tests.helpers.dynamics_arguments import grouped
from tests.helpers.loops import LinearLoop, RecurrentDepth, looped_llama

pytestmark = pytest.mark.slow

SMALL = {
    "length": 6, "lengths": (4,), "sentences": 5, "short_steps": 20, "short_tau": 5, "dimension_times": (0, 10),
    "long_steps": 60, "long_tau": 10, "check": 1, "check_steps": 20, "max_period": 4, "examples": 5, "batch_size": 2,
    "dtype": "float64", "log_figures": False,
}  # fmt: skip


def texts(rows=5, tokens=6):
    ids = torch.randint(4, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids}


def observed(module, tmp_path, **changes):
    found = EncoderDynamics(**grouped(**{**SMALL, **changes}), probe=[texts()])
    found.attach(Run(tmp_path))
    return found.observe(module.eval(), 0)


def values(table, quantity, **where):
    return select(table, quantity=quantity, **where)["value"].to_numpy()


def test_a_linear_loop_has_its_exponent_and_its_fixed_point(tmp_path):
    torch.manual_seed(0)
    model = LinearLoop().double()
    with torch.no_grad():
        basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
        moduli = torch.tensor([0.8, 0.4, 0.2, 0.1], dtype=torch.float64)
        model.a.weight.copy_(basis @ torch.diag(moduli) @ basis.T)
    table = observed(model, tmp_path, long_steps=80)
    found = values(table, "local_exponent", term="long")
    np.testing.assert_allclose(found[-1], np.log(0.8), atol=1e-6)
    assert values(table, "orbit_share", kind="fixed point") == 1
    assert values(table, "attractors") > 1  # one for each text
    assert not len(values(table, "synchronization_offset"))


def test_each_sentence_is_iterated_with_its_own_text(tmp_path, caplog):
    torch.manual_seed(0)
    model, one = RecurrentDepth().double(), EncoderDynamics._cut
    with caplog.at_level("INFO"):
        table = observed(model, tmp_path, long_steps=50)
    assert "step depends on the text" in caplog.text
    f = EncoderMap(model, texts(), dtype=torch.float64)
    for i in (0, 3):  # alone, and not two at a time
        batch = one({name: t[i : i + 1] for name, t in texts().items()}, 6)
        run = long_run(f.of(batch), f.start(batch), 10, 50, rows=[i])
        found = values(table, "sentence_local_exponent", sentence=i)
        np.testing.assert_allclose(found, run.exponents[:, 0][: len(found)], atol=1e-8)
        assert len(found) == 5
    assert not len(values(table, "transverse_exponent"))


def test_a_long_term_of_hours_is_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(encoder_dynamics, "_LONG", 0.0)
    observed(RecurrentDepth(), tmp_path)
    assert "this observation may take 0.0 hours" in caplog.text


def test_the_core_by_name(tmp_path):
    """An iteration begins where one says: after the second layer of the core instead of before the adapter."""
    torch.manual_seed(0)
    model = RecurrentDepth().double()
    found, whole = observed(model, tmp_path / "found"), {"in": "adapter", "a": "core.0", "b": "core.1"}
    named = observed(model, tmp_path / "named", sites=whole)
    one, other = (values(table, "sentence_orbit_exponent") for table in (named, found))
    np.testing.assert_allclose(one, other, atol=0.02)  # the perturbation is at another place of the same loop
    with pytest.raises(ValueError, match=r"encoder_dynamics: .*do not run in every iteration.*prelude\.0"):
        observed(model, tmp_path / "wrong", sites={"p": "prelude.0", "c": "core.0"})


def test_trajectories_that_end_are_left_out_with_their_texts():
    class Unstable(LinearLoop):
        """Doubles the states of some texts, and closes others."""

        def forward(self, input_ids, depth=None):
            e = self.embed(input_ids)
            factor = torch.where(input_ids[:, :1, None] % 2 == 0, 1e30, 0.1)
            x = e
            for _ in range(depth or self.depth):
                x = self.a(x) * factor + e
            return self.out(x)

    torch.manual_seed(0)
    model, batch = Unstable().double(), {"input_ids": torch.tensor([[4, 5], [7, 8], [6, 9], [9, 9]])}
    f = EncoderMap(model, batch, dtype=torch.float64)
    whole = long_run(f.of(batch), f.start(batch), 5, 150, end_recurrent=True)
    assert whole.diverged.tolist() == [True, False, True, False]
    for i in range(4):
        alone = {"input_ids": batch["input_ids"][i : i + 1]}
        run = long_run(f.of(alone), f.start(alone), 5, 150, end_recurrent=True, rows=[i])
        np.testing.assert_allclose(whole.exponents[:, i], run.exponents[:, 0], rtol=0, atol=1e-9)


def test_causal_loops_keep_the_full_map(tmp_path, caplog):
    with caplog.at_level("INFO"):
        table = observed(looped_llama(3), tmp_path, dtype="float32", threshold=1e-3)
    assert "lmdyn iterates the full map at all steps: attention is causal" in caplog.text
    assert values(table, "switched_share") == 0
    assert not len(values(table, "reduced_map_exponent"))
    assert len(values(table, "local_exponent", term="long")) == 6


class Layers(nn.Module):
    """Layers that multiply by numbers of their own."""

    def __init__(self, factors):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 4)
        self.blocks = nn.ModuleList(Times(factor) for factor in factors)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return self.factor * x


@pytest.mark.parametrize("factors", [(2.0, 0.5, 3.0), (1.0, 1.0)])
def test_depth_wise_exponents_of_layers_that_differ(factors, tmp_path):
    table = observed(Layers(factors).double(), tmp_path)
    np.testing.assert_allclose(values(table, "stretching"), factors, rtol=1e-9)
    expected = np.cumsum(np.log(factors)) / np.arange(1, len(factors) + 1)
    np.testing.assert_allclose(values(table, "depth_exponent"), expected, atol=1e-9)
    np.testing.assert_allclose(values(table, "local_exponent"), np.log(factors), atol=1e-9)

"""``LoopConvergence``: its numbers are those of the sums, what it finds is a setting, what it refuses."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from lmdyn.analysis.dynamics.convergence import LoopSums
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.callbacks import LoopConvergence, Run, select
from tests.helpers.architectures import VOCABULARY
from tests.helpers.loops import RecurrentDepth, looped_llama
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.refusals import assert_refused

pytestmark = pytest.mark.slow


def batches(padded=False):
    draw = torch.Generator().manual_seed(1)
    found = []
    for rows, tokens in ((3, 8), (2, 6)):
        ids = torch.randint(4, VOCABULARY, (rows, tokens), generator=draw)
        mask = torch.ones_like(ids)
        mask[0, tokens - 2 :] = 0 if padded else 1
        labels = ids.roll(-1, 1).masked_fill(mask == 0, -100)
        labels[:, -1] = -100
        found.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return found


def observer(tmp_path, data=None, **changes):
    found = LoopConvergence(
        **{"horizon": 9, "labels": "aligned", "log_figures": False, **changes}, probe=data or batches()
    )
    found.attach(Run(tmp_path))
    return found


def model(build=RecurrentDepth, **changes):
    torch.manual_seed(0)
    return build(**changes).eval()


def values(table, quantity, **where):
    return select(table, quantity=quantity, **{"position": None, **where})["value"].to_numpy()


def test_numbers_are_those_of_the_sums_and_it_leaves_no_trace(tmp_path):
    module = model(depth=3).train()
    table = assert_leaves_alone(observer(tmp_path, times=[0, 1, 4, 9]), module)
    module.eval()
    f, sums = EncoderMap(module, batches()[0]), LoopSums(9, 8)
    for batch in batches():
        sums.update(f, batch, batch["attention_mask"].bool(), batch["labels"])
    means = sums.means()
    for name in ("cross_entropy", "accuracy", "divergence", "norm"):
        np.testing.assert_allclose(values(table, name), means[name][[0, 1, 4, 9]], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(values(table, "residual"), means["residual"][[1, 4]])
    for rule in ("argmax", "divergence"):
        share = means[f"settled_{rule}"]
        np.testing.assert_allclose(values(table, "settled_share", rule=rule), share[[0, 1, 4]])
        np.testing.assert_allclose(values(table, "censored_share", rule=rule), 1 - share[8])
    assert values(table, "depth") == 3
    assert values(table, "horizon") == 9
    assert len(values(table, "residual", position=7, t=4)) == 1


def test_settling_depth_is_the_mean_over_predictions(tmp_path):
    module = model()
    table = observer(tmp_path).observe(module, 0)
    (whole,) = values(table, "settling_depth", rule="argmax")
    at = select(table, quantity="settling_depth", rule="argmax").dropna(subset="position")
    labelled = np.zeros(8)
    for batch in batches():
        counts = (batch["labels"] != -100).sum(0).numpy()
        labelled[: len(counts)] += counts
    weights = labelled[at["position"].to_numpy(dtype=int)]
    np.testing.assert_allclose(whole, np.average(at["value"], weights=weights), rtol=1e-9)


def test_what_is_found_is_a_setting(tmp_path):
    found = observer(tmp_path, horizon=None)
    found.observe(model(depth=5), 0)
    assert found.settings["horizon"] == 20
    assert found.settings["times"] == [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 20]
    assert found.settings["sites"] == {"layer1": "core.0", "layer2": "core.1"}
    named = observer(tmp_path / "named", sites={"a": "adapter", "b": "core.0", "c": "core.1"})
    named.observe(model(), 0)
    assert named.settings["sites"] == {"a": "adapter", "b": "core.0", "c": "core.1"}


@pytest.mark.parametrize("given", [{}, {"horizon": 12}, {"times": [0, 2, 4]}])
def test_a_run_with_defaults_goes_on(tmp_path, given):
    """What is found with the module is in the file, and not yet known where a resumed run checks settings."""
    for step in (0, 1):
        found = observer(tmp_path, **{"horizon": None, **given})
        found.store.write(step, found.observe(model(depth=5), step))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    with pytest.raises(ValueError, match="contains observations with other settings"):  # given: compared
        observer(tmp_path, **{**given, "horizon": 7})


def test_padding_is_left_out(tmp_path):
    """Right padding does not reach earlier tokens of a causal model: numbers are those of the rows without it."""
    module = model(looped_llama, depth=3)
    whole = observer(tmp_path, batches(padded=True)).observe(module, 0)
    alone = []
    for batch in batches(padded=True):
        for i, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            alone.append({name: t[i : i + 1, :length] for name, t in batch.items()})
    apart = observer(tmp_path / "alone", alone).observe(module, 0)
    for quantity in ("residual", "cross_entropy", "norm"):
        np.testing.assert_allclose(values(whole, quantity), values(apart, quantity), rtol=2e-4)


def test_what_is_refused(tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
    bert = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **sizes)).eval()
    with pytest.raises(ValueError, match="applies each layer once"):
        observer(tmp_path).bind(bert)
    with pytest.raises(ValueError, match=r"The iteration's number or an earlier state may have an effect"):
        observer(tmp_path).bind(model(depth_embedding=True))
    assert_refused(
        lambda times, horizon: observer(tmp_path, horizon=horizon, times=times).bind(model()),
        ({"times": [0, 99], "horizon": None}, "times extend to 99, beyond the horizon, 16"),
        ({"times": [3, 1], "horizon": 9}, "expected increasing whole numbers"),
        ({"times": [], "horizon": 9}, "expected increasing whole numbers"),
        ({"times": [3, 10], "horizon": 9}, "beyond the horizon, 9"),
    )

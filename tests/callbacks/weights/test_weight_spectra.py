"""WeightSpectra: rows of all kinds of matrices, references, no data, what is left out, refusals."""

import pandas as pd
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.analysis.parameters.head_matrices import head_matrices
from lmdyn.analysis.weights.spectra import matrix_spectrum
from lmdyn.callbacks import Checkpoint, Earlier, Previous, Run, Steps, WeightSpectra, requirements, select
from lmdyn.callbacks.observing.run import reported
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.modules import Own, fit_four_steps
from tests.helpers.refusals import assert_refused


def observer(folder, **arguments):
    made = WeightSpectra(**{"log_figures": False, **arguments})
    saved = folder / "checkpoints"
    made.attach(Run(folder, checkpoint_folder=saved if saved.is_dir() else None))
    return made


def save(folder, module, step):
    (folder / "checkpoints").mkdir(exist_ok=True)
    torch.save({"state_dict": module.state_dict()}, folder / "checkpoints" / f"step={step:09d}.ckpt")


def value(table, quantity, site, **columns):
    (found,) = select(table, quantity=quantity, site=site, **columns)["value"]
    return found


@pytest.fixture(scope="module")
def llama():
    return ARCHITECTURES["llama"]()


def test_rows_are_those_of_the_matrices_and_of_the_products_of_heads(llama, tmp_path):
    table = observer(tmp_path, singular_values=3).observe(llama, 0)
    for name, p in llama.named_parameters():
        site = name.removesuffix(".weight")
        rows = select(table, site=site, matrix="weight")
        if p.ndim < 2:
            assert rows.empty
            continue
        found = matrix_spectrum(p)
        for quantity in ("frobenius_norm", "effective_rank", "stable_rank", "gini", "condition_number"):
            assert value(rows, quantity, site) == pytest.approx(float(getattr(found, quantity)), rel=1e-12)
        top = select(rows, quantity="singular_value").sort_values("k")["value"]
        assert top.tolist() == pytest.approx(found.singular_values[:3].tolist())
    site = "model.layers.1.self_attn"
    heads = head_matrices(llama)["layer2"]
    for head in range(4):
        qk = matrix_spectrum(heads.q[head].double().T @ heads.k[head // 2].double())  # grouped queries
        ov = matrix_spectrum(heads.o[head].double() @ heads.v[head // 2].double())
        for matrix, whole in (("qk", qk), ("ov", ov)):
            rows = select(table, matrix=matrix, head=head)
            assert value(rows, "nuclear_norm", site) == pytest.approx(float(whole.nuclear_norm))
            assert value(rows, "effective_rank", site) == pytest.approx(float(whole.effective_rank))
            assert value(rows, "numerical_rank", site) == 8
    assert not table["value"].isna().any()


def test_no_data_and_no_forward_pass_are_required(tmp_path):
    made, module = observer(tmp_path), nn.ModuleDict({"layer": nn.Linear(3, 4)})  # which cannot be called
    assert not made.observe(module, 0).empty
    assert not {"labels", "probe_set", "split", "max_tokens", "forward"} & set(made.settings)
    assert not requirements(WeightSpectra(), module)
    with pytest.raises(ValueError, match="has no data"):
        observer(tmp_path, gradients=True)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_run_without_validation_data_is_observed(tmp_path):
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.ones(2, 3, dtype=torch.long)}
    fit_four_steps(Own(), [batch] * 4, tmp_path, [WeightSpectra(schedule=Steps(at=(0, 2)))])
    table = pd.read_parquet(tmp_path / "observations" / "weight_spectra")
    assert sorted(table["step"].unique()) == [0, 2, 4]
    assert value(table, "distance", "net.1", step=2, reference="initial") > 0


def test_gates_are_blocks_of_the_whole(tmp_path):
    lstm, site = nn.ModuleDict({"lstm": nn.LSTM(5, 3)}), "lstm.weight_ih_l0"
    table = select(observer(tmp_path).observe(lstm, 0), site=site)
    whole = lstm["lstm"].weight_ih_l0.detach().double()
    for gate, block in zip(("input", "forget", "cell", "output"), whole.split(3), strict=True):
        expected = float(torch.linalg.matrix_norm(block, 2))
        assert value(table, "spectral_norm", site, part=gate) == pytest.approx(expected)
    assert value(table, "frobenius_norm", site, part="") == pytest.approx(float(whole.norm()))


def test_experts_are_a_stack_of_matrices(tmp_path):
    config = transformers.MixtralConfig(
        vocab_size=11, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    made = observer(tmp_path)
    table = made.observe(model, 0)
    site = "model.layers.0.mlp.experts.down_proj"
    experts = model.get_parameter(site)
    for i in range(3):
        expected = float(matrix_spectrum(experts[i]).effective_rank)
        assert value(table, "effective_rank", site, index=i) == pytest.approx(expected)
    assert any("stack of 3 matrices" in line for line in reported(made.name))
    assert not made.is_scalar(table)[table["index"].notna()].any()


def test_adapters_of_lora_have_rows_and_their_zeros_numbers(tmp_path):
    adapters = {"lora_A": nn.Linear(8, 2, bias=False), "lora_B": nn.Linear(2, 8, bias=False)}
    model = nn.ModuleDict({**adapters, "low": nn.Linear(8, 8, dtype=torch.bfloat16)})
    nn.init.zeros_(model["lora_B"].weight)
    table = observer(tmp_path).observe(model, 0)
    zero = select(table, site="lora_B")
    assert set(zero["value"]) == {0.0}
    assert not {"condition_number", "gini", "hoyer"} & set(zero["quantity"])
    assert value(table, "numerical_rank", "lora_A") == 2
    assert value(table, "effective_rank", "low") > 1
    assert not table["value"].isna().any()


def test_tied_tables_are_measured_once_and_aligned(tmp_path):
    model = ARCHITECTURES["gpt2"]()
    table = observer(tmp_path).observe(model, 0)
    assert "lm_head" not in set(select(table, quantity="effective_rank")["site"])
    assert value(table, "output_cosine", "lm_head") == value(table, "output_cka", "lm_head") == 1
    untied = ARCHITECTURES["own_lstm"]()
    table = observer(tmp_path).observe(untied, 0)
    cosine = torch.cosine_similarity(untied.embed.weight, untied.out.weight).mean().detach()
    assert value(table, "output_cosine", "out") == pytest.approx(float(cosine), abs=1e-6)
    assert 0 < value(table, "output_cka", "out") < 1


def test_distances_are_those_from_the_runs_own_checkpoints(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    save(tmp_path, model, 0)
    made = observer(tmp_path)
    assert select(made.observe(model, 0), quantity="distance").empty
    before = model["a"].weight.detach().clone()
    with torch.no_grad():
        model["a"].weight += 1
    save(tmp_path, model, 5)
    with torch.no_grad():
        model["a"].weight += 1
    table = made.observe(model, 9)
    assert value(table, "distance", "a", reference="initial") == pytest.approx(6, rel=1e-6)
    assert value(table, "distance", "a", reference="previous") == pytest.approx(3, rel=1e-6)
    relative = pytest.approx(6 / float(before.norm()), rel=1e-6)
    assert value(table, "relative_distance", "a", reference="initial") == relative
    for quantity in ("distance", "angle"):
        assert value(table, quantity, "b", reference="initial") == 0
    assert set(table["reference"]) == {"", "initial", "previous"}


def test_without_a_checkpoint_of_step_0_there_is_no_initial(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3)})
    save(tmp_path, model, 5)
    assert set(observer(tmp_path).observe(model, 9)["reference"]) == {"", "previous"}
    assert set(observer(tmp_path, reference={}).observe(model, 9)["reference"]) == {""}
    own = observer(tmp_path, reference={"past": Earlier()})
    assert set(own.observe(model, 9)["reference"]) == {"", "past step 5"}


def test_a_reference_of_another_architecture_is_refused_and_missing_matrices_are_said(tmp_path):
    other = nn.ModuleDict({"a": nn.Linear(3, 3), "c": nn.Linear(4, 4)})
    path = tmp_path / "other.ckpt"
    reference = Checkpoint(str(path))
    reference.foresee(path, other)  # as if it were loaded
    made = observer(tmp_path, reference={"other": reference})
    table = made.observe(nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}), 0)
    assert set(select(table, reference="other")["site"]) == {"a"}
    assert any("other lacks b" in line for line in reported(made.name))
    made = observer(tmp_path, reference={"other": reference})
    with pytest.raises(ValueError, match="shares no matrix with this module"):
        made.observe(nn.Linear(5, 5), 0)


def loader(rows=4):
    ids = torch.randint(3, 20, (rows, 6), generator=torch.Generator().manual_seed(0))
    return DataLoader([{"input_ids": row[:-1], "labels": row[1:]} for row in ids], batch_size=2)


def test_gradients_are_those_of_the_mean_loss(tmp_path):
    model = ARCHITECTURES["own_lstm"]()
    made = observer(tmp_path, gradients=True, probe=loader(), labels="aligned")
    table = select(made.observe(model, 0), matrix="gradient")
    batch = {key: torch.cat([b[key] for b in loader()]) for key in ("input_ids", "labels")}
    loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    for name in ("out", "embed"):
        expected = matrix_spectrum(model.get_parameter(f"{name}.weight").grad)
        assert value(table, "frobenius_norm", name) == pytest.approx(float(expected.frobenius_norm), rel=1e-5)
        assert value(table, "effective_rank", name) == pytest.approx(float(expected.effective_rank), rel=1e-4)
    assert made.settings["labels"] == "aligned"


def test_refusals(tmp_path):
    def observe(model=None, **arguments):
        observer(tmp_path, **arguments).observe(model, 0)

    assert_refused(
        observe,
        ({"model": nn.LayerNorm(4)}, "no parameter of LayerNorm"),
        ({"reference": Previous()}, "requires the run's own checkpoints"),
        (
            {"gradients": True, "probe": DataLoader([]), "model": ARCHITECTURES["own_lstm"]()},
            "the probe set is empty",
        ),
    )


def test_what_cannot_be_measured_is_said(tmp_path):
    made = observer(tmp_path)
    sizes = transformers.XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8)
    made.observe(transformers.XLNetModel(sizes), 0)
    said = " ".join(reported(made.name))
    for what in ("QK and OV of layer.0.rel_attn", "the alignment of embedding and output layer", "distances"):
        assert what in said

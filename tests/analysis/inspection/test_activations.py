"""Capture and invisibility."""

import itertools
import random

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from lmdyn.analysis import capture, observing, resolve_sites
from lmdyn.analysis.inspection.attention_weights import (
    _fused_weights,
    attention_as,
    switches_attention,
    watch_attention,
)
from lmdyn.analysis.inspection.transformer import attention_sites
from tests.helpers.architectures import ARCHITECTURES, example_batch


class Shared(nn.Module):
    """One layer that runs three times, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(3):
            x = self.layer(x).tanh()
        return x


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 3, batch_first=True))


class TestCapture:
    def test_first_tensor_of_a_tuple_and_gradient_by_finite_differences(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        x = torch.randn(2, 5, 3, dtype=torch.float64)
        with capture(net, {"h": "1"}, gradients=True) as seen:
            loss = net(x).square().sum()
            gradient = seen.gradients(loss)["h"]
            h = seen.activations["h"]
        step = torch.zeros_like(h)
        step[1, 3, 2] = 1e-6
        up, down = (net[2](h + s).square().sum().detach() for s in (step, -step))
        assert gradient[1, 3, 2].item() == pytest.approx(float(up - down) / 2e-6, rel=1e-6)
        assert not h.requires_grad
        assert all(p.grad is None for p in net.parameters())

    def test_a_module_that_runs_n_times_gives_n_sites(self):
        net = Shared()
        with capture(net, {"h": "layer"}, gradients=True) as seen:
            out = net(torch.ones(1, 4))
            assert list(seen.activations) == ["h@0", "h@1", "h@2"]
            assert torch.equal(seen.activations["h@2"].tanh(), out)
            assert seen.gradients(out.sum())["h@2"].shape == (1, 4)
            seen.clear()
            net(torch.zeros(1, 4))
            assert list(seen.activations) == ["h@0", "h@1", "h@2"]

    def test_frozen_parameters_still_give_gradients(self):
        net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).requires_grad_(False)
        with capture(net, {"e": "0"}, gradients=True) as seen:
            loss = net(torch.tensor([[1, 2]])).sum()
            expected = net[1].weight.sum(0).expand(1, 2, 4)
            torch.testing.assert_close(seen.gradients(loss)["e"], expected)

    @pytest.mark.parametrize("frozen", [False, True])
    @pytest.mark.parametrize("gradients", [False, True])
    @pytest.mark.parametrize("then", [nn.ReLU(inplace=True), lambda x: x.mul_(2), lambda x: x[:, :1].add_(1)])
    def test_what_is_overwritten_in_place_later_is_an_error_with_a_remedy(self, then, gradients, frozen):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.h = nn.Linear(3, 4)

            def forward(self, x):
                h = self.h(x)
                then(h)
                return h

        net = Net().requires_grad_(not frozen)
        with (
            pytest.raises(RuntimeError, match=r"sites .*h[,)].*`x = x \+ y` for `x \+= y`"),
            torch.set_grad_enabled(gradients),
            capture(net, {"h": "h"}, gradients=gradients) as seen,
        ):
            loss = net(torch.randn(2, 3)).sum()
            if gradients:
                seen.gradients(loss)
            _ = seen.activations

    def test_in_place_modules_are_sites_themselves_and_eval_dropout_writes_nothing(self):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(inplace=True), nn.Linear(4, 1)]
        net = nn.Sequential(*layers).eval()
        x = torch.randn(5, 3)
        for mode in (True, False):
            with torch.set_grad_enabled(mode), capture(net, {"relu": "1"}, gradients=mode) as seen:
                loss = net(x).sum()
                assert torch.equal(seen.activations["relu"], net[0](x).relu())
                if mode:
                    assert torch.equal(seen.gradients(loss)["relu"], net[3].weight.expand(5, 4))
        with torch.inference_mode(), capture(net, {"relu": "1"}) as seen:  # there nothing is counted
            net(x)
            assert seen.activations["relu"].shape == (5, 4)

    def test_a_site_without_influence_has_gradient_zero(self):
        net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        with capture(net, {"a": "a", "b": "b"}, gradients=True) as seen:
            net["a"](torch.ones(1, 2))
            gradients = seen.gradients(net["b"](torch.ones(1, 2)).sum())
        assert gradients["a"].abs().sum() == 0
        assert gradients["b"].abs().sum() > 0

    def test_unknown_silent_and_misnamed_sites_are_errors(self):
        net = Shared()
        with pytest.raises(ValueError, match=r"did you mean 'layer'\?"):
            resolve_sites(net, {"h": "layers"})
        many = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(1, 1) for _ in range(300))})
        with pytest.raises(ValueError, match=r"did you mean 'blocks.7'\?") as error:
            resolve_sites(many, {"h": "block.7"})
        assert len(str(error.value)) < 300  # not all of them
        with pytest.raises(ValueError, match="choose another name"):
            resolve_sites(net, {"h@0": "layer"})
        with capture(net, {"h": "unused"}) as seen:
            net(torch.ones(1, 4))
            with pytest.raises(RuntimeError, match=r"did not run some sites \(h\)"):
                _ = seen.activations

    def test_hooks_go_also_after_an_error(self):
        net = model()
        with pytest.raises(ZeroDivisionError), capture(net, {"h": "1"}):
            1 / 0  # noqa: B018
        assert not any(m._forward_hooks for m in net.modules())


class TestObserving:
    def test_random_states_modes_and_flags_are_restored_also_after_an_error(self):
        net = nn.Sequential(nn.Dropout(), nn.Dropout())
        net[1].eval()  # each submodule's own mode
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        cudnn = torch.backends.cudnn.enabled
        with pytest.raises(ZeroDivisionError), observing(net):
            assert not net[0].training
            torch.rand(1), random.random(), np.random.rand()
            1 / 0  # noqa: B018
        assert net[0].training
        assert not net[1].training
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert (np.random.get_state()[1] == states[2]).all()
        assert torch.backends.cudnn.enabled == cudnn

    def test_gradients_inside_inference_mode_and_no_autocast(self):
        net = nn.Linear(2, 2)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), observing(net):
            out = net(torch.ones(1, 2))
            assert out.dtype == torch.float32
            assert out.requires_grad
            assert torch.autograd.grad(out.sum(), net.weight)[0].shape == (2, 2)


def test_weights_that_only_a_dropout_answers_are_those_of_the_attention_around_it():
    model, batch = ARCHITECTURES["deberta"](), example_batch("deberta")
    ids, path = batch["input_ids"], "deberta.encoder.layer.1.attention"
    sites = {"attention": f"{path}.self", "dropout": f"{path}.self.dropout"}
    with torch.no_grad(), observing(model), capture(model, {}, attention_sites=sites) as seen:
        model(ids)
        found = seen.attentions
        expected = model(ids, output_attentions=True).attentions[1]
    torch.testing.assert_close(found["attention"], expected)
    assert torch.equal(found["attention"], found["dropout"])
    with (
        pytest.raises(RuntimeError, match=r"'mlp' returns no .* weights"),
        capture(model, {}, attention_sites={"mlp": "deberta.encoder.layer.1.output"}),
    ):
        model(ids)


def test_weights_that_rwkv_scales_in_place_are_as_they_were():
    sizes = {"vocab_size": 30, "hidden_size": 8, "attention_hidden_size": 8, "num_hidden_layers": 3}
    model = transformers.RwkvForCausalLM(transformers.RwkvConfig(**sizes, rescale_every=1)).train()
    ids = torch.randint(0, 30, (2, 5), generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), observing(model):
        first = model(ids).logits
        scaled = model.state_dict()
        assert not all(torch.equal(value, before[name]) for name, value in scaled.items())  # the control
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.rwkv.layers_are_rescaled is False
    assert model.training
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, first)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), observing(model):  # scaled already, and to stay so
        model(ids)
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


class Counts(nn.Module):
    """Keeps something in buffers, also in eval mode: written in place, and put in anew."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        self.last = self.last + x[0].detach()
        return self.linear(x) + self.last


def test_buffers_are_what_they_were():
    module = Counts()
    module(torch.ones(1, 2))
    tensors = dict(module.named_buffers())
    before = {name: b.clone() for name, b in tensors.items()}
    with observing(module):
        module(torch.ones(1, 2))
        assert float(module.calls) == 2  # the control: it was written to
        assert float(module.last[0]) == 2
    for name, buffer in module.named_buffers():
        assert buffer is tensors[name]
        assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "albert"])
def test_weights_of_fused_attention_are_those_of_eager(name):
    """With padding on the left, queries of which see nothing; no other number changes."""
    model = ARCHITECTURES[name]()
    ids = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    inner = next(m for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation"))
    assert inner.config._attn_implementation == "sdpa"
    assert not switches_attention(model)

    def run():
        with torch.no_grad():
            return inner(input_ids=ids, attention_mask=mask)[0]

    with observing(model):
        plain = run()
        with capture(model, {}, attention_sites=attention_sites(model)) as seen:
            output = run()
            fused = seen.attentions
        with attention_as(model, "eager"), capture(model, {}, attention_sites=attention_sites(model)) as seen:
            run()
            eager = seen.attentions
    assert inner.config._attn_implementation == "sdpa"
    assert torch.equal(output, plain)
    real = mask.bool()
    assert fused.keys() == eager.keys()
    for site, weights in fused.items():
        own, expected = (w.transpose(1, 2)[real] for w in (weights, eager[site]))
        torch.testing.assert_close(own, expected, atol=1e-6, rtol=0)
        assert not weights.isnan().any()


def test_weights_of_attention_with_dropout_change_nothing():
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    expected, after = module(x, x, x, need_weights=False)[0], torch.rand(1)
    torch.manual_seed(0)
    with capture(module, {}, attention_sites={"a": ""}) as seen:
        torch.testing.assert_close(module(x, x, x, need_weights=False)[0], expected, atol=0, rtol=0)
        assert torch.rand(1) == after
        torch.testing.assert_close(seen.attentions["a"].sum(-1), torch.ones(1, 2, 4))


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("too long")


class GoesOn(nn.Module):
    """Attends after a module within it failed."""

    def __init__(self):
        super().__init__()
        self.fast = Fails()

    def forward(self, x):
        try:
            return self.fast(x)
        except ValueError:
            return F.scaled_dot_product_attention(x, x, x)


def test_a_module_that_answers_nothing_has_not_failed():
    class Storing(nn.Module):
        def forward(self, x):
            self.output = F.scaled_dot_product_attention(x, x, x)

    storing, x = Storing(), torch.randn(1, 2, 3, 4)
    with capture(storing, {}, attention_sites={"a": ""}) as seen:
        storing(x)
        torch.testing.assert_close(seen.attentions["a"], (x @ x.mT / 2).softmax(-1))


def test_attention_after_an_error_within_is_that_of_the_module_that_goes_on():
    model, seen = GoesOn(), []
    x = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    with watch_attention([model, model.fast], lambda m, output, weights, within: seen.append((m, within))):
        model(x)
        F.scaled_dot_product_attention(x, x, x)  # of no module
    ((module, (weights,)),) = seen
    assert module is model
    torch.testing.assert_close(weights, (x @ x.mT / 8**0.5).softmax(-1))


class Fused(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x).flatten(1, 2)


class Autocast(nn.Module):
    """Attention within the module's own autocast, whose query is not of the key's precision."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            key = x if x.dtype == torch.float64 else x.bfloat16()
            return F.scaled_dot_product_attention(x, key, x)


def test_weights_within_autocast_are_those_of_what_the_call_reads():
    x = 3 * torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    with capture(module := Autocast(), {}, attention_sites={"a": ""}) as seen:
        output = module(x)
        weights = seen.attentions["a"]
    read = x.bfloat16().float()
    torch.testing.assert_close(weights, (read @ read.mT / 8**0.5).softmax(-1))
    torch.testing.assert_close(output.float(), weights @ read, rtol=0.02, atol=0.02)


def test_weights_are_read_outside_of_the_model_s_autocast():
    def read(_, weights):
        assert not torch.is_autocast_enabled("cpu")
        return weights @ weights

    with capture(module := Autocast(), {}, attention_sites={"a": ""}, read=read) as seen:
        module(torch.randn(2, 2, 5, 8))
        assert seen.attentions["a"].dtype == torch.float32


def test_weights_of_float64_within_autocast_are_in_float64():

    x = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with capture(module := Autocast(), {}, attention_sites={"a": ""}) as seen:
        output = module(x)
        weights = seen.attentions["a"]
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights, (x @ x.mT / 8**0.5).softmax(-1))
    torch.testing.assert_close(output, weights @ x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_on_meta_have_their_shape(dtype):
    seen, x = [], torch.empty(2, 2, 5, 8, device="meta", dtype=dtype)
    with watch_attention([model := Fused()], lambda m, output, weights, within: seen.extend(within)):
        model(x)
    assert [tuple(weights.shape) for weights in seen] == [(2, 2, 5, 5)]


def test_a_call_of_one_sequence_without_batch_goes_on_without_weights():
    class Single(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x[0, 0], x[0, 0], x[0, 0])

    seen, model, x = [], Single(), torch.randn(2, 2, 5, 8)
    with watch_attention([model], lambda m, output, weights, within: seen.append(within)):
        assert torch.equal(model(x), Single()(x))
    assert seen == [[]]


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.01), (torch.float16, 0.001)])
def test_weights_of_half_precision_are_as_exact_as_the_model_s_own(dtype, most):
    g = torch.Generator().manual_seed(0)
    q, k = (4 * torch.randn(1, 1, 12, 16, generator=g).to(dtype) for _ in range(2))
    expected = (q.double() @ k.double().mT / 4).softmax(-1)
    found = _fused_weights(q, k, k)
    assert float((found - expected).abs().max()) < 1e-5
    fused = F.scaled_dot_product_attention(q, k, torch.eye(12, dtype=dtype)[None, None])
    assert float((fused - expected).abs().max()) < most


def naive_weights(q, k, seen, bias, scale):
    """One row at a time: the softmax of what a query sees, 0 where it sees nothing."""
    found = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        keys = seen.expand(found.shape)[b, h, i].nonzero()[:, 0]
        if len(keys):
            own = k[min(b, len(k) - 1), h * k.shape[1] // q.shape[1]].double()
            scores = scale * own @ q[b, h, i].double() + bias.expand(found.shape)[b, h, i]
            found[b, h, i, keys] = scores[keys].softmax(0)
    return found


@pytest.mark.parametrize(
    "case", ["none", "causal", "mask", "of rows", "bias", "bias of rows", "grouped", "keys of one"]
)
def test_weights_of_a_fused_call_are_those_of_single_rows(case):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, heads, 5, 8, generator=g) for heads in (4, 2 if case == "grouped" else 4))
    if case == "keys of one":
        k = k[:1]
    seen = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    bias = torch.zeros(1, 1, 5, 5)
    given = {"scale": 0.3, "enable_gqa": case == "grouped"}
    if case == "causal":
        seen, given["is_causal"] = seen.tril(), True
    if "mask" in case or "rows" in case:
        seen = torch.rand(3 if "rows" in case else 1, 1, 5, 5, generator=g) < 0.5
        seen[-1, :, 2] = False  # a query that sees nothing
        given["attn_mask"] = seen
    if "bias" in case:
        bias = torch.randn(3, 4, 5, 5, generator=g)
        given["attn_mask"] = bias.masked_fill(~seen, -torch.inf)
    if case == "of rows":
        k[0, :, 1] = torch.nan  # hidden from all
        seen[0, :, :, 1] = False
    found = _fused_weights(q, k, k, **given)
    torch.testing.assert_close(found.double(), naive_weights(q, k, seen, bias, 0.3), atol=1e-6, rtol=0)

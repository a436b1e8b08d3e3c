"""Looped models as maps: at every depth the module's own forward, for texts and lengths other than the example's."""

from functools import partial

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForMaskedLM

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.maps.copies import private_copy
from lmdyn.analysis.dynamics.synchronized_map import synchronized_map
from lmdyn.analysis.orbits.lyapunov import local_lyapunov_exponents
from lmdyn.analysis.orbits.lyapunov_spectrum import lyapunov_spectrum
from lmdyn.models import LoopedLanguageModel
from tests.helpers.architectures import ARCHITECTURES, HIDDEN, VOCABULARY
from tests.helpers.loops import LinearLoop, PlainLoop, RecurrentDepth, at_depth, looped_llama

EXACT = {torch.float32: 1e-6, torch.float64: 1e-10}


def seeded(build, *args, **kwargs):
    torch.manual_seed(0)
    return build(*args, **kwargs).eval()


def text(rows, tokens, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(4, VOCABULARY, (rows, tokens), generator=draw)}


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def to_the_end(f, batch):
    """The state of a text after as many steps as the model makes."""
    g, x = f.of(batch), f.start(batch)
    for layer in f.maps:
        x = g(x) if f.shared else layer(x)
    return x


def logits(output):
    return getattr(output, "logits", output)


def by_depth(model, batch, depth):
    return logits(model(batch["input_ids"], depth=depth))


def of_llama(model, batch, depth):
    return at_depth(model, depth)(**batch, use_cache=False).logits


def of_albert(model, batch, depth):
    model.config.num_hidden_layers = depth
    return model(**batch).logits


def albert(**changes):
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_attention_heads": 4,
    }
    config = AlbertConfig(**sizes, embedding_size=16, num_hidden_layers=4, initializer_range=0.2, **changes)
    return AlbertForMaskedLM(config)


OWN = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "initializer_range": 0.2}
OURS = partial(LoopedLanguageModel, config=OWN, vocab_size=VOCABULARY, depth=4)
LOOPS = {
    "llama": (lambda: looped_llama(4), of_llama),
    "llama, groups of two layers": (lambda: looped_llama(3, group=2), of_llama),
    "albert": (albert, of_albert),
    "albert, two layers a group": (lambda: albert(inner_group_num=2), of_albert),
    "concat, zeros": (RecurrentDepth, by_depth),
    "concat, random": (lambda: RecurrentDepth(initial="random"), by_depth),
    "concat, prelude": (lambda: RecurrentDepth(initial="prelude"), by_depth),
    "add, zeros": (lambda: RecurrentDepth("add"), by_depth),
    "add, within a layer": (lambda: RecurrentDepth("none", inside=True), by_depth),
    "none": (lambda: RecurrentDepth("none", "prelude"), by_depth),
    "concat, norm at the end": (lambda: RecurrentDepth(core_norm=True), by_depth),
    "add, norm at the end": (lambda: RecurrentDepth("add", core_norm=True), by_depth),
    "our own, concat": (OURS, by_depth),
    "our own, random, add": (lambda: OURS(injection="add", initial="random"), by_depth),
    "plain": (PlainLoop, by_depth),
    "linear": (LinearLoop, by_depth),
}
SINGLE = ("llama", "albert, two layers a group", "concat, zeros")  # in float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for d in EXACT for n in (LOOPS if d == torch.float64 else SINGLE)]
)
@torch.no_grad()
def test_every_depth_is_the_module_s_own(name, dtype):
    """Done when: for texts and lengths other than the example's, at each depth, through the module's own coda."""
    build, run = LOOPS[name]
    model, other = seeded(build).to(dtype), text(3, 11, seed=1)
    f = EncoderMap(model, text(2, 6), dtype=dtype)
    assert f.shared
    assert f.injected == any(word in name for word in ("concat", "add", "linear"))
    g, x, different = f.of(other), f.start(other), []
    for depth in range(1, len(f.maps) + 3):  # beyond the model's own depth too
        x = g(x)
        torch.manual_seed(0)  # as the map, of a state at depth 0 that is drawn
        expected = run(model, other, depth)
        assert relative(logits(f.finish(other, x)), expected) < EXACT[dtype]
        different.append(expected)
    assert relative(different[0], different[1]) > 1e-3  # the control: depth does something
    twice = torch.cat([x, 2 * x])
    torch.testing.assert_close(g(twice)[:3], g(x), rtol=0, atol=0.1 * EXACT[dtype] * float(x.abs().max()))


def test_groups_of_albert_one_after_the_other_are_layers_over_depth():
    """a, a, b, b: no step is repeated throughout. Its second group alone is a core, by its name."""
    model, other = seeded(albert, num_hidden_groups=2).double(), text(3, 11, seed=1)
    f = EncoderMap(model, text(2, 6), dtype=torch.float64)
    assert not f.shared
    assert len(f.maps) == 4
    with torch.no_grad():
        expected = model(**other).logits
    assert relative(f.finish(other, to_the_end(f, other)).logits, expected) < 1e-10
    path = "albert.encoder.albert_layer_groups.1.albert_layers.0"
    core = EncoderMap(model, text(2, 6), dtype=torch.float64, sites={"second": path})
    assert core.shared
    assert len(core.maps) == 2
    x = core(core(core.start(other)))
    assert relative(core.finish(other, x).logits, expected) < 1e-10


# ---------------------------------------------------------------------------------------------- rows


def test_an_injected_map_belongs_to_its_rows():
    model, batch = seeded(RecurrentDepth).double(), text(4, 7)
    f = EncoderMap(model, batch, dtype=torch.float64)
    x = f.start(batch) + 0.1
    with pytest.raises(ValueError, match=r"apply `f\.of\(batch\)`"):
        f(x)
    g = f.of(batch)
    torch.testing.assert_close(g(torch.cat([x, x + 1]))[4:], g(x + 1), rtol=0, atol=1e-12)
    one = f.of({"input_ids": batch["input_ids"][2:3]})
    torch.testing.assert_close(one(x[2:3]), g(x)[2:3], rtol=0, atol=1e-12)
    rows = torch.tensor([3, 1])
    torch.testing.assert_close(g.part(rows)(x[rows]), g(x)[rows], rtol=0, atol=1e-12)
    # the control: other texts
    assert not torch.allclose(g.part(rows.flip(0))(x[rows]), g(x)[rows], atol=1e-3)
    for wrong in (x[:3], x[:, :5]):
        with pytest.raises(ValueError, match=r"texts of size \(4, 7\), but the state has"):
            g(wrong)
    assert len(g(x[:0])) == 0
    plain = EncoderMap(seeded(PlainLoop), batch)
    assert plain.of(batch) is plain
    assert plain.part(rows) is plain


def test_models_that_write_in_place():
    class InPlace(RecurrentDepth):
        def forward(self, input_ids, depth=None):
            e = self.embed(input_ids)
            e += 1.0
            x = torch.zeros_like(e)
            for _ in range(depth or self.depth):
                x += e
                x = torch.tanh(self.core[0].mlp(x))
            return self.head(x)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x):
            x += torch.tanh(self.linear(x))
            return x

    model, other = seeded(InPlace).double(), text(3, 8, seed=1)
    plain = PlainLoop().double()
    plain.step = Layer().double()
    for written in (model, plain):
        f = EncoderMap(written, text(2, 6), dtype=torch.float64)
        g, x = f.of(other), f.start(other)
        kept = x.clone()
        y = g(g(x))
        assert torch.equal(x, kept)
        with torch.no_grad():
            assert relative(f.finish(other, y), written(other["input_ids"], depth=2)) < 1e-10


# ---------------------------------------------------------------------------------------------- what is no map


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["added", "argument"])
def test_steps_that_know_their_number_are_refused(kind):
    class Numbered(PlainLoop):
        def forward(self, input_ids, depth=None):
            x = self.embed(input_ids)
            for i in range(depth or self.depth):
                x = self.step(x, 0.1 * i)
            return self.out(x)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x, number):
            return torch.tanh(self.own(x) + number)

    model = seeded(RecurrentDepth, depth_embedding=True) if kind == "added" else seeded(Numbered)
    if kind == "argument":
        model.step = Step()
    with pytest.raises(ValueError, match=r"iteration's number .*have an effect"):
        EncoderMap(model, text(2, 6))
    model.depth = 2  # of two iterations, the first one tells
    with pytest.raises(
        ValueError, match=r"iteration's number .*have an effect|differs from later iterations"
    ):
        EncoderMap(model, text(2, 6))


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_what_reads_earlier_states_answers_at_no_other_depth(depth):
    class Averaged(PlainLoop):
        def forward(self, input_ids, depth=None):
            x, states = self.embed(input_ids), []
            for _ in range(depth or self.depth):
                x = self.step(x)
                states.append(x)
            return self.out(torch.stack(states).mean(0))

    model, batch = seeded(Averaged).double(), text(2, 6)
    model.depth = depth
    f = EncoderMap(model, batch, dtype=torch.float64)
    g, x = f.of(batch), f.start(batch)
    with torch.no_grad():  # the states are the model's own
        assert relative(g(x), model.step(model.embed(batch["input_ids"]))) < 1e-10
    with pytest.raises(ValueError, match="and on earlier states"):
        f.finish(batch, g(x))


def test_the_first_and_the_last_state_are_read_at_any_depth():
    class Both(PlainLoop):
        def forward(self, input_ids, depth=None):
            x, first = self.embed(input_ids), None
            for _ in range(depth or self.depth):
                x = self.step(x)
                first = x if first is None else first
            return self.out(x - first)

    model, batch = seeded(Both).double(), text(2, 6)
    f = EncoderMap(model, batch, dtype=torch.float64)
    g, x = f.of(batch), f.start(batch)
    for depth in range(1, 8):
        x = g(x)
        with torch.no_grad():
            assert relative(f.finish(batch, x), model(batch["input_ids"], depth=depth)) < 1e-8


def test_a_step_that_reads_earlier_states_is_refused():
    class Memory(PlainLoop):
        def forward(self, input_ids, depth=None):
            x = self.embed(input_ids)
            seen = [x]
            for _ in range(depth or self.depth):
                x = self.step(torch.stack(seen).mean(0) + x)
                seen.append(x)
            return self.out(x)

    model = seeded(Memory)
    with pytest.raises(ValueError, match="or an earlier state may have"):
        EncoderMap(model, text(2, 6))
    model.depth = 2  # the first iteration reads its state twice, so nothing says what the state at depth 0 is
    with pytest.raises(ValueError, match="the first iteration receives its input unlike"):
        EncoderMap(model, text(2, 6))


def test_noise_in_each_step_is_refused():
    class Noisy(PlainLoop):
        def forward(self, input_ids, depth=None):
            x = self.embed(input_ids)
            for _ in range(depth or self.depth):
                x = self.step(x + 0.1 * torch.randn_like(x))
            return self.out(x)

    with pytest.raises(ValueError, match="each iteration of Noisy draws random numbers"):
        EncoderMap(seeded(Noisy), text(2, 6))


def test_sites_that_are_no_core_are_refused():
    with pytest.raises(ValueError, match="'b' of LinearLoop is not the start of the next iteration"):
        EncoderMap(seeded(LinearLoop), text(2, 6), sites={"a": "a", "b": "b"})
    with pytest.raises(ValueError, match=r"do not run in every iteration of RecurrentDepth \(prelude.0\)"):
        EncoderMap(seeded(RecurrentDepth), text(2, 6), sites={"p": "prelude.0", "c": "core.0"})
    with pytest.raises(ValueError, match=r"no module 'cores\.0'"):
        EncoderMap(seeded(RecurrentDepth), text(2, 6), sites={"c": "cores.0"})
    by_name = EncoderMap(
        seeded(RecurrentDepth), text(2, 6), sites={"in": "adapter", "c0": "core.0", "c1": "core.1"}
    )
    assert by_name.unit == ("adapter", "core.0", "core.1")


# ---------------------------------------------------------------------------------------------- caches, other calls


class Around(nn.Module):
    """Calls a model without a word about its cache, which is then kept by default."""

    def __init__(self, lm):
        super().__init__()
        self.lm = lm

    def forward(self, input_ids):
        return self.lm(input_ids)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "jamba", "llama"])
@torch.no_grad()
def test_a_kept_cache_is_no_part_of_the_map(name):
    model, batch = Around(ARCHITECTURES[name]()), text(2, 6)
    f = EncoderMap(model, batch)
    other = text(3, 9, seed=1)
    expected = model.lm(**other, use_cache=False).logits
    assert relative(f.finish(other, to_the_end(f, other)).logits, expected) < 1e-6


@torch.no_grad()
def test_a_looped_llama_that_keeps_a_cache():
    model, other = Around(looped_llama(4)).double(), text(3, 9, seed=1)
    model.lm.config.use_cache = True  # as transformers has it
    f = EncoderMap(model, text(2, 6), dtype=torch.float64)
    expected = model.lm(**other, use_cache=False).logits
    assert relative(f.finish(other, to_the_end(f, other)).logits, expected) < 1e-10
    kept = model.lm(**other, use_cache=True).logits
    assert relative(kept, expected) > 1e-3  # the control: with a cache a loop sees its own past


def reversed_call(module, batch):
    return module(batch["words"].flip(1))


@torch.no_grad()
def test_modules_that_are_called_in_another_way():
    model, batch = seeded(RecurrentDepth).double(), {"words": text(2, 6)["input_ids"]}
    other = {"words": text(3, 9, seed=1)["input_ids"]}
    f = EncoderMap(model, batch, dtype=torch.float64, forward=reversed_call)
    assert relative(f.finish(other, to_the_end(f, other)), model(other["words"].flip(1))) < 1e-10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's own, as torch.compile is first used
def test_compiled_modules_are_run_as_they_were_before():
    model, other = seeded(RecurrentDepth).double(), text(3, 9, seed=1)
    whole = torch.compile(model)
    inner = seeded(RecurrentDepth).double()
    inner.core[1] = torch.compile(inner.core[1])
    expected = EncoderMap(model, text(2, 6), dtype=torch.float64)
    expected = expected.of(other)(expected.start(other))
    for compiled in (whole, inner):
        f = EncoderMap(compiled, text(2, 6), dtype=torch.float64)
        torch.testing.assert_close(f.of(other)(f.start(other)), expected, rtol=0, atol=0)
        assert f.unit == ("core.0", "core.1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies(dtype):
    layer = nn.Linear(2, 2)
    layer.kept = layer(torch.ones(1, 2))  # of a forward pass, with its graph
    angles = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    layer.register_buffer("rotary", torch.polar(torch.ones_like(angles), angles).to(torch.complex64))
    copied = private_copy(layer, dtype, "sdpa")
    assert copied.weight.dtype == dtype
    assert not copied.weight.requires_grad
    assert torch.equal(copied.kept, layer.kept.detach())
    assert copied.rotary.dtype == dtype.to_complex()
    torch.testing.assert_close(copied.rotary.to(torch.complex64), layer.rotary, rtol=0, atol=0)
    layer.generator = (i for i in range(3))
    with pytest.raises(ValueError, match="lmdyn cannot copy Linear"):
        private_copy(layer, dtype, "sdpa")


# ---------------------------------------------------------------------------------------------- exponents


def test_a_linear_loop_has_its_exact_exponents():
    """x ↦ A x + B e: ln |eigenvalues of A|, whatever is injected."""
    torch.manual_seed(0)
    model = LinearLoop().double()
    moduli = torch.tensor([0.9, 0.5, 0.25, 0.1], dtype=torch.float64)
    basis = torch.randn(4, 4, dtype=torch.float64)
    model.a.weight.data = basis @ torch.diag(moduli * torch.tensor([1, -1, 1, 1])) @ basis.inverse()
    batch = text(2, 1)
    f = EncoderMap(model, batch, dtype=torch.float64)
    g, x = f.of(batch), f.start(batch)
    found = lyapunov_spectrum(g, x, k=4, steps=5, skip=25).exponents
    torch.testing.assert_close(found, moduli.log().expand(2, 4), rtol=0, atol=1e-6)
    local = local_lyapunov_exponents(g, x, 10, 60, 1e-3, rows=[0, 1])
    torch.testing.assert_close(local.exponents[-1], moduli[:1].log().expand(2), rtol=0, atol=1e-6)
    assert not local.diverged.any()
    fixed = torch.linalg.solve(
        torch.eye(4, dtype=torch.float64) - model.a.weight,
        (model.b(model.embed(batch["input_ids"])))[..., None],
    )[..., 0]
    x = f.start(batch)
    for _ in range(220):
        x = g(x)
    # the state is what A answers; the model's own x is B e more
    torch.testing.assert_close(x + model.b(model.embed(batch["input_ids"])), fixed, rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch, at its first use
@pytest.mark.parametrize("build", [RecurrentDepth, lambda: looped_llama(4)])
def test_derivatives_of_loops_are_those_of_differences(build):
    model, batch = seeded(build).double(), text(2, 5)
    f = EncoderMap(model, batch, dtype=torch.float64, attention="eager")
    g, x = f.of(batch), f.start(batch) + 0.1
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, along = torch.func.jvp(g, (x,), (v,))
    torch.testing.assert_close(y, g(x), rtol=0, atol=1e-12)
    small = 1e-3  # Llama's norms are in float32 whatever the dtype
    assert relative(along, (g(x + small * v) - g(x - small * v)) / (2 * small)) < 2e-3
    assert relative(along, (g(x + small * v.flip(0)) - g(x)) / small) > 0.1  # the control: another direction
    one = {"input_ids": batch["input_ids"][:1, :2]}  # under vmap too: the spectrum
    found = lyapunov_spectrum(f.of(one), f.start(one), k=3, steps=4)
    assert bool(found.exponents.isfinite().all())


# ---------------------------------------------------------------------------------------------- one token


class Mean(PlainLoop):
    """A loop whose tokens see the mean of all."""

    def __init__(self):
        super().__init__()
        self.step = Together()


class Together(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.mix = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        return torch.tanh(self.own(x) + self.mix(x.mean(1, keepdim=True)))


def test_the_map_of_one_token_is_there_where_tokens_are_alike():
    f = EncoderMap(seeded(Mean).double(), text(2, 6), dtype=torch.float64)
    x = torch.randn(3, HIDDEN, dtype=torch.float64)
    expected = f(x[:, None].expand(-1, 5, -1))[:, 0]
    torch.testing.assert_close(synchronized_map(f)(x), expected, rtol=0, atol=1e-12)


class Placed(Mean):
    def __init__(self):
        super().__init__()
        self.step = AtPlaces()


class AtPlaces(Together):
    def forward(self, x):  # weights by distance, which equal tokens do not show
        at = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        weights = torch.softmax(-(at[:, None] - at).abs(), -1)
        return torch.tanh(self.own(x) + self.mix(weights @ x))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (PlainLoop, "attention is causal"),
        (Placed, "positions enter at each step"),
        (RecurrentDepth, "each step depends on the text"),
    ],
)
def test_it_is_refused_where_they_are_not(build, reason):
    f = EncoderMap(seeded(build), text(2, 6))
    with pytest.raises(ValueError, match=f"{reason}.*has no reduced map"):
        synchronized_map(f)

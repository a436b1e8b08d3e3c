"""The looped language model: transformers' own layers again and again, random depths that are functions of the step."""

import lightning as L
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from transformers import LlamaForCausalLM

from lmdyn.callbacks import RunState, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarCorpus
from lmdyn.models import LoopedLanguageModel
from lmdyn.models.looped.looped_lm import training_depth
from tests.helpers.modules import quiet_trainer
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import GRAMMAR

V = 20
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
PLAIN = {"prelude_layers": 0, "coda_layers": 0, "injection": "none", "initial": "prelude", "norms": False}
VARIANTS = {
    "concat": {},
    "add": {"injection": "add", "initial": "prelude"},
    "random": {"initial": "random"},
    "plain": PLAIN,
}


def model(**changes):
    torch.manual_seed(0)
    return LoopedLanguageModel(**{"config": SIZES, "vocab_size": V, "depth": 4, **changes}).eval()


def batch():
    ids = torch.randint(0, V, (3, 8), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(8) < torch.tensor([8, 5, 7])[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.roll(-1, 1).masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("depth", [1, 3])
def test_without_anything_between_it_is_a_llama_of_the_same_layers(depth):
    module, b = model(**PLAIN), batch()
    theirs = LlamaForCausalLM(module.model.config).eval()
    theirs.model.embed_tokens, theirs.model.norm = module.model.embed_tokens, module.model.norm
    theirs.model.layers = nn.ModuleList([*module.model.core] * depth)
    theirs.config.num_hidden_layers = 2 * depth
    theirs.lm_head.load_state_dict(module.decoder.state_dict())
    given = {name: b[name] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(module(**given, depth=depth).logits, theirs(**given, use_cache=False).logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_word_sees_no_later_one_at_any_depth(variant):
    module, ids = model(**VARIANTS[variant]), batch()["input_ids"]
    changed = ids.clone()
    changed[:, 5] = (ids[:, 5] + 1) % V
    for depth in (1, 4, 9):
        before, after = module(ids, depth=depth).logits, module(changed, depth=depth).logits
        torch.testing.assert_close(after[:, :5], before[:, :5])
        assert not torch.allclose(after[:, 5:], before[:, 5:])
        torch.testing.assert_close(module(ids[:, :6], depth=depth).logits, before[:, :6])
    assert torch.equal(module(ids).logits, module(ids, depth=4).logits)
    module.evaluation_depth = 9
    torch.testing.assert_close(module(changed).logits, after)


def test_injection_matters_and_states_at_depth_0_are_as_documented():
    ids = batch()["input_ids"]
    e = torch.zeros(3, 8, 16)
    zeros, random, prelude = (model(initial=i).model.initial_state for i in ("zeros", "random", "prelude"))
    assert not zeros(e + 1).any()
    assert prelude(e) is e
    assert torch.equal(random(e)[0], random(e)[2])
    assert not torch.equal(random(e)[:, 0], random(e)[:, 1])
    assert torch.equal(random(e), model(initial="random").model.initial_state(e))
    assert not torch.equal(random(e), model(initial="random", depth_seed=1).model.initial_state(e))
    drawn = random(e, torch.Generator().manual_seed(0))
    assert drawn.std(correction=0).item() == pytest.approx(1, abs=0.2)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(model()(ids).logits, model(injection="add")(ids).logits, atol=1e-3)


# ---------------------------------------------------------------------------------------------- depths


def test_depths_have_the_distribution_that_they_say():
    steps = range(4000)
    uniform = [training_depth(step, 5, "uniform") for step in steps]
    assert set(uniform) == set(range(1, 10))
    counts = np.bincount(uniform)[1:]
    assert stats.chisquare(counts).pvalue > 1e-3
    drawn = np.array([training_depth(step, 8, "poisson_lognormal", sigma=0.5) for step in steps])
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(8, abs=0.25)
    # Var = E rate + Var rate, of a log-normal rate with mean 7
    assert drawn.var() == pytest.approx(7 + 49 * (np.exp(0.25) - 1), rel=0.15)
    assert {training_depth(step, 3, "fixed") for step in steps} == {3}
    assert {training_depth(step, 1, "poisson_lognormal") for step in range(20)} == {1}


def test_gradients_go_through_the_last_iterations_only():
    b = batch()

    def gradients(depth, with_gradients, **changes):
        module = model(**changes)
        logits = module(b["input_ids"], b["attention_mask"], depth, with_gradients).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), b["labels"].flatten())
        return torch.autograd.grad(loss, [*module.parameters()], allow_unused=True)

    whole, same, less = gradients(4, None), gradients(4, 4), gradients(4, 1)
    assert all(torch.equal(a, c) for a, c in zip(whole, same, strict=True))
    assert any(not torch.allclose(a, c, atol=1e-6) for a, c in zip(whole, less, strict=True))
    assert all(g is not None for g in less)  # what is injected reaches the prelude
    untied = {"config": {**SIZES, "tie_word_embeddings": False}}
    assert gradients(4, 1, **PLAIN, **untied)[0] is None  # the control: nothing is injected


# ---------------------------------------------------------------------------------------------- training

CORPUS = {**GRAMMAR, "n_train_tokens": 700, "layers": ["upos"]}


class Depths(L.Callback):
    def __init__(self):
        self.seen = []

    def on_train_start(self, trainer, module):
        whole = type(module.model).forward
        module.model.forward = lambda *args, **kwargs: (
            self.seen.append((trainer.global_step, module.training, kwargs["depth"])),
            whole(module.model, *args, **kwargs),
        )[1]


def fit(folder, steps, resume_from=None, **changes):
    L.seed_everything(1, verbose=False)
    module = LoopedLanguageModel(config=SIZES, depth=3, depth_distribution="uniform", **changes)
    depths = Depths()
    callbacks = depths, RunState(), ScheduledCheckpoint(schedule=Steps(every=4), weights_only=False)
    settings = {"limit_val_batches": 1, "accumulate_grad_batches": 2, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(folder, *callbacks, max_steps=steps, **settings)
    trainer.fit(module, GrammarCorpus(**CORPUS, batch_size=4, sequence_length=8), ckpt_path=resume_from)
    return module, depths.seen


@pytest.mark.filterwarnings("ignore")
def test_trains_with_one_depth_an_update(tmp_path):
    module, seen = fit(tmp_path, 6, initial="random")
    assert module.vocab_size == module.hparams["vocab_size"] == module.decoder.out_features
    trained = [(step, depth) for step, training, depth in seen if training]
    assert trained == [(step, training_depth(step, 3, "uniform")) for step in range(6) for _ in range(2)]
    assert len({depth for _, depth in trained}) > 2


@pytest.mark.filterwarnings("ignore")
def test_resumed_training_is_the_same(tmp_path):
    whole, seen = fit(tmp_path / "whole", 6, initial="random")
    (checkpoint,) = (tmp_path / "whole").rglob("*000000004.ckpt")
    resumed, again = fit(tmp_path / "resumed", 6, resume_from=checkpoint, initial="random")
    assert [s for s in seen if s[1] and s[0] >= 4] == [s for s in again if s[1]]
    found = resumed.state_dict()
    assert all(torch.equal(found[name], expected) for name, expected in whole.state_dict().items())


def test_what_is_refused():
    assert_refused(
        model,
        ({"core_layers": 0}, "core_layers is 0: expected at least 1"),
        ({"evaluation_depth": 0}, "evaluation_depth is 0: expected at least 1"),
        ({"config": {**SIZES, "num_hidden_layers": 3}}, "set prelude_layers, core_layers and coda_layers"),
        ({"family": "gpt2", "config": {"n_embd": 8, "n_head": 2}}, "GPT2Model has no"),
        (
            {"family": "mistral", "config": {**SIZES, "sliding_window": 4}},
            "has layers without full attention: set another `family`",
        ),
    )
    assert_refused(model(), (torch.zeros(1, 17, dtype=torch.long), "longer than the model's 16 positions"))

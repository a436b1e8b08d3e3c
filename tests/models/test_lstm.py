import math

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from lmdyn.models import LSTMLanguageModel, StackedLSTM, carry_state
from tests.helpers.ranks import TORCHRUN, run_ranks
from tests.models.quiet import trainer

pytestmark = [
    # machines that have a GPU
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    # runs without validation are meant
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

VOCAB = 11


class Windows:
    """Windows of `time` tokens over rows that go on from window to window, as the stream loader's."""

    def __init__(self, rows=4, time=6, windows=5, seed=0, ignored=0.0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCAB, (rows, time * windows + 1), generator=generator)
        self.labels = self.tokens[:, 1:].clone()
        self.labels[torch.rand(self.labels.shape, generator=generator) < ignored] = -100
        self.time, self.windows = time, windows

    def __len__(self):
        return self.windows

    def __iter__(self):
        for i in range(self.windows):
            at = slice(i * self.time, (i + 1) * self.time)
            batch = {"input_ids": self.tokens[:, :-1][:, at], "labels": self.labels[:, at]}
            yield {**batch, "continues": torch.full((len(self.tokens),), i > 0)}


class Data(L.LightningDataModule):
    """A datamodule whose tokenizer exists once its setup has run."""

    def setup(self, stage):
        self.tokenizer = {str(i): i for i in range(VOCAB)}

    def train_dataloader(self):
        return Windows()

    def val_dataloader(self):
        return Windows(seed=1)


class After(L.Callback):
    """Calls a function with the module after each training batch or validation."""

    def __init__(self, batch=None, validation=None):
        self.batch, self.validation, self.seen = batch, validation, []

    def on_train_batch_end(self, trainer, module, *args):
        if self.batch:
            self.seen.append(self.batch(module))

    def on_validation_end(self, trainer, module):
        if self.validation and not trainer.sanity_checking:
            self.seen.append(self.validation(module))


class Scripted(LSTMLanguageModel):
    """Its validation losses are given: the first is that of the sanity check."""

    script = ()

    def on_validation_epoch_start(self):
        super().on_validation_epoch_start()
        self.value, *self.script = self.script

    def update_metrics(self, logits, labels, losses):
        super().update_metrics(logits, labels, torch.full(labels.shape, self.value))


def small(**kwargs):
    torch.manual_seed(0)
    return LSTMLanguageModel(**({"vocab_size": VOCAB, "embedding_size": 5, "hidden_size": 5} | kwargs))


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def learning_rate(module):
    return module.trainer.optimizers[0].param_groups[0]["lr"]


def naive_logits(model, input_ids):
    """Step by step from the equations, with PyTorch's order of the gates: i, f, g, o."""
    x = [model.embedding.weight[column] for column in input_ids.T]
    for layer in model.lstm.layers:
        h = c = torch.zeros(len(input_ids), layer.hidden_size, dtype=torch.float64)
        out = []
        for token in x:
            gates = token @ layer.weight_ih_l0.T + layer.bias_ih_l0
            i, f, g, o = (gates + h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        x = out
    return torch.stack([h @ model.decoder.weight.T + model.decoder.bias for h in x], dim=1)


# The model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_forward_is_the_equations(num_layers):
    model = small(hidden_size=7, num_layers=num_layers).double().eval()
    input_ids = torch.randint(VOCAB, (3, 8))
    expected = naive_logits(model, input_ids)
    torch.testing.assert_close(model(input_ids).logits, expected, rtol=1e-10, atol=1e-10)


def test_tied_weights_share_storage_and_train():
    model = small(tie_weights=True, embedding_size=5)
    before = model.decoder.weight.detach().clone()
    trainer().fit(model, Windows())
    assert model.decoder.weight is model.embedding.weight
    assert not torch.equal(before, model.decoder.weight)
    with pytest.raises(ValueError, match="embedding_size == hidden_size, got 4 and 5"):
        small(tie_weights=True, embedding_size=4)


# The state ------------------------------------------------------------------------------------------------


def test_windows_with_carried_state_are_one_long_forward():
    model = small().double().eval()
    data, state, logits = Windows(), None, []
    for batch in data:
        output = model(batch["input_ids"], state=carry_state(state, batch["continues"]))
        state = output.state
        logits.append(output.logits)
    whole = model(data.tokens[:, :-1])
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, whole.state, rtol=1e-10, atol=1e-10)


def test_a_row_that_does_not_continue_starts_from_zero():
    model = small().eval()
    first, second = torch.randint(VOCAB, (2, 3, 6))
    state = carry_state(model(first).state, torch.tensor([True, False, True]))
    reset, fresh, carried = (model(second, state=s).logits for s in (state, None, model(first).state))
    torch.testing.assert_close(reset[1], fresh[1])
    torch.testing.assert_close(reset[[0, 2]], carried[[0, 2]])
    assert not torch.allclose(fresh, carried)


# Training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_the_hand_written_loop(accumulate):
    data = Windows(windows=6, ignored=0.2)
    trained, reference = (small(dropout=0.0, gradient_clip_val=0.01).double() for _ in range(2))
    trainer(max_epochs=2, accumulate_grad_batches=accumulate).fit(trained, data)

    clipped = 0
    for _ in range(2):
        state = None
        for i, batch in enumerate(data):
            if i % accumulate == 0:
                reference.zero_grad()
            output = reference(batch["input_ids"], state=state)
            state = [(h.detach(), c.detach()) for h, c in output.state]
            kept = batch["labels"] != -100
            log_p = output.logits.log_softmax(-1)[kept]
            (-log_p[range(len(log_p)), batch["labels"][kept]].mean() / accumulate).backward()
            if (i + 1) % accumulate == 0:
                norm = sum(p.grad.square().sum() for p in reference.parameters()).sqrt()
                clipped += int(norm > 0.01)
                with torch.no_grad():
                    for p in reference.parameters():
                        p -= 20.0 * p.grad * min(1.0, 0.01 / (norm + 1e-6))
    assert clipped
    for ours, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for (h, c), h_all, c_all in zip(state, *trained.resume_state().values(), strict=True):
        torch.testing.assert_close(h[0], h_all, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(c[0], c_all, rtol=1e-9, atol=1e-12)


def test_validation_does_not_disturb_training():
    runs = []
    for settings in ({"limit_val_batches": 0}, {"val_check_interval": 2, "num_sanity_val_steps": 2}):
        model = small(anneal_factor=None)
        after = After(batch=lambda m: weights(m) + list(m.resume_state().values()))
        torch.manual_seed(1)
        trainer(None, after, max_epochs=2, **settings).fit(model, Windows(), Windows(rows=3, seed=1))
        runs.append([tensor for seen in after.seen for tensor in seen])
    assert same(*runs)


@pytest.mark.parametrize(("setting", "norm"), [({}, 1e-3), ({"gradient_clip_val": 5e-4}, 5e-4)])
def test_clipping_and_the_trainers_own(setting, norm):
    def total(module):
        return math.sqrt(sum(p.grad.square().sum().item() for p in module.parameters()))

    after = After(batch=total)
    trainer(None, after, **setting).fit(small(gradient_clip_val=1e-3), Windows())
    assert after.seen == pytest.approx([norm] * 5, rel=1e-2)


# Annealing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [4.0, None])
def test_learning_rate_is_divided_when_the_loss_fails_to_improve(factor):
    model = Scripted(VOCAB, 5, 5, anneal_factor=factor)
    # 0.1 in the sanity check is no loss to beat; 4 = 4 is no improvement; 3.5 rises; 3.2 is above the best
    model.script = (0.1, 5.0, 4.0, 4.0, 3.0, 3.5, 3.2, 2.9, math.nan)
    after = After(validation=learning_rate)
    trainer(None, after, max_epochs=8, num_sanity_val_steps=1).fit(model, Windows(windows=1), Windows())
    rates = [20, 20, 5, 5, 1.25, 0.3125, 0.3125, 0.078125]
    assert after.seen == (rates if factor else [20] * 8)
    assert model.best_val_loss == pytest.approx(2.9)


# Evaluation -----------------------------------------------------------------------------------------------


def test_loss_is_the_mean_over_tokens_and_perplexity_its_exponential():
    model = small().double().eval()
    data = Windows(ignored=0.6)
    counts = [int((batch["labels"] != -100).sum()) for batch in data]
    assert len(set(counts)) > 1  # else a mean of means would pass
    losses = F.cross_entropy(model(data.tokens[:, :-1]).logits.flatten(0, 1), data.labels.flatten())
    (validated,) = trainer().validate(model, data, verbose=False)
    (tested,) = trainer().test(model, data, verbose=False)
    for name, metrics in (("val", validated), ("test", tested)):
        assert metrics[f"{name}_loss"] == pytest.approx(losses.item(), rel=1e-6)
        assert metrics[f"{name}_perplexity"] == pytest.approx(math.exp(losses.item()), rel=1e-6)


def test_predict_gives_surprisals():
    model, data = small().eval(), Windows(ignored=0.3)
    surprisals = torch.cat(trainer().predict(model, data), dim=1)
    log_p = model(data.tokens[:, :-1]).logits.log_softmax(-1)
    expected = -log_p.gather(2, data.labels.clamp(min=0)[..., None])[..., 0]
    kept = data.labels != -100
    torch.testing.assert_close(surprisals[kept], expected[kept])
    assert surprisals[~kept].isnan().all()


# Building, saving, resuming -------------------------------------------------------------------------------


def test_vocabulary_from_the_datamodule_is_in_the_checkpoint(tmp_path):
    model = LSTMLanguageModel(embedding_size=5, hidden_size=5)
    run = trainer()
    run.fit(model, Data())
    assert model.decoder.out_features == model.hparams["vocab_size"] == VOCAB
    built = model.decoder
    model.configure_model()
    assert model.decoder is built
    run.save_checkpoint(tmp_path / "last.ckpt")
    loaded = LSTMLanguageModel.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert same(weights(model), weights(loaded))
    assert loaded.hparams == model.hparams
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert checkpoint["best_val_loss"] == model.best_val_loss
    assert set(checkpoint["state_dict"]) == {name for name, _ in model.named_parameters()}  # no carried state


def test_a_carried_state_of_other_layers_is_refused():
    model = small()
    trainer().fit(model, Windows())
    with pytest.raises(ValueError, match="h and c of 3 layers"):
        small(num_layers=3).load_resume_state(model.resume_state())


def test_continuing_without_a_state_is_said(caplog):
    class Middle(Windows):
        def __iter__(self):
            yield from list(super().__iter__())[2:]

        def __len__(self):
            return self.windows - 2

    trainer().fit(small(), Middle())
    assert [r.message for r in caplog.records if "RunState" in r.message]
    caplog.clear()
    trainer().fit(small(), Windows())
    assert not [r.message for r in caplog.records if "RunState" in r.message]


# Ranks ----------------------------------------------------------------------------------------------------


class Ranked(LSTMLanguageModel):
    """Its validation loss rises on rank 0 and falls by more on rank 1."""

    def update_metrics(self, logits, labels, losses):
        loss = 5.0 + self.current_epoch * (1.0 - 3.0 * self.global_rank)
        super().update_metrics(logits, labels, torch.full(labels.shape, loss))


class OneBatch:
    def __init__(self, times):
        self.times = times

    def __len__(self):
        return 1

    def __iter__(self):
        ids = torch.zeros(2, self.times, dtype=torch.long)
        yield {"input_ids": ids, "labels": ids}


class Unequal(L.LightningDataModule):
    def train_dataloader(self):
        return OneBatch(3)

    def val_dataloader(self):
        return OneBatch(3 if self.trainer.global_rank else 9)


def rank_main(folder):
    ranks = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    run = trainer(folder, max_epochs=2, **ranks)
    module = Ranked(vocab_size=4, embedding_size=3, hidden_size=3)
    run.fit(module, Unequal())
    (folder / str(run.global_rank)).write_text(f"{learning_rate(module)} {module.best_val_loss}")


@pytest.mark.slow
def test_two_ranks_anneal_as_one(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", **TORCHRUN)
    # 9 tokens of rank 0 weigh three times the 3 of rank 1: (6 * 3 + 3 * 1) / 4 = 5.25 > 5 anneals on both,
    # while a mean of means (4.5) and rank 1 alone (3) would not
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["5.0 5.0", "5.0 5.0"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_on_processors_without_half_precision(dtype, monkeypatch):
    """Their LSTMs run in float32, where PyTorch's own raise."""
    for name in ("_is_mkldnn_bf16_supported", "_is_mkldnn_fp16_supported"):
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: False, raising=False)
    lstm, x = StackedLSTM(3, 4, num_layers=2), torch.randn(2, 5, 3)
    expected, _ = lstm(x)
    with torch.autocast("cpu", dtype):
        found, _ = lstm(x)
        assert torch.is_autocast_enabled("cpu")
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    found.sum().backward()
    assert lstm.layers[0].weight_ih_l0.grad.dtype == torch.float32

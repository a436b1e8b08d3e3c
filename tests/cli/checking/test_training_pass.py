"""Time and operations of a training batch, on models whose products are counted by hand."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Timer
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from lmdyn.callbacks.conditions.finding import Cost
from lmdyn.callbacks.conditions.machine import in_time
from lmdyn.callbacks.training.time_budget import TimeBudget
from lmdyn.cli.checking import training_pass as module
from lmdyn.cli.checking.built import Built
from lmdyn.cli.checking.check import _of_time
from lmdyn.cli.checking.preflight import Plan
from lmdyn.cli.checking.training_pass import TrainingPass, duration, training_pass
from lmdyn.models import MaskedLanguageModel

WIDTH, LAYERS, TYPES, TIME, ROWS = 32, 3, 50, 20, 6


class Rows(L.LightningDataModule):
    """Rows of labelled tokens; of a masked model, the first two positions are asked for."""

    def __init__(self, masked=False, rows=ROWS):
        super().__init__()
        self.masked, self.rows = masked, rows

    def train_dataloader(self):
        ids = torch.randint(5, TYPES, (self.rows, TIME), generator=torch.Generator().manual_seed(0))
        rows = [{"input_ids": row, "labels": row.clone()} for row in ids]
        if self.masked:
            for row in rows:
                row["labels"][2:] = -100
                row["masked_positions"] = torch.tensor([0, 1])
        return DataLoader(rows, batch_size=self.rows)


def causal():
    config = GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=2, n_positions=TIME, vocab_size=TYPES, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def test_operations_are_those_of_the_products(monkeypatch):
    """Three products of each matrix with the states (forward; gradients of states and weights), and attention's."""
    monkeypatch.setattr(module, "ENOUGH", 60.0)  # so that all rows are timed, however busy the machine is
    monkeypatch.setattr(module, "MOST", 60.0)
    batch = training_pass(causal(), Rows())
    weights = LAYERS * 12 * WIDTH**2 + TYPES * WIDTH
    assert batch.operations == ROWS * (6 * TIME * weights + 12 * LAYERS * WIDTH * TIME**2)
    assert batch.rows == (ROWS, ROWS)
    assert batch.seconds > 0
    assert batch.cost.memory > ROWS * TIME * TYPES * 4


def test_masked_models_project_what_they_are_asked_for():
    """By its own losses: the vocabulary at two positions of a row, the pooler at one."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 4 * WIDTH,
    }
    model = MaskedLanguageModel(family="bert", config=sizes, vocab_size=TYPES)
    model.configure_model()
    batch = training_pass(model, Rows(masked=True))
    of_layers = 6 * TIME * LAYERS * 12 * WIDTH**2 + 12 * LAYERS * WIDTH * TIME**2
    of_head = 6 * 2 * (TYPES * WIDTH + WIDTH**2)
    pooler = 2 * WIDTH**2  # forward only: these rows have no pairs
    assert batch.operations == ROWS * (of_layers + of_head + pooler)


def test_nothing_is_left_behind():
    model = causal().train()
    model.lm_head.weight.grad = gradient = torch.ones_like(model.lm_head.weight)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.random.get_rng_state()
    for fails in (False, True):
        if fails:
            model.forward = lambda input_ids: torch.zeros(()).backward()
        assert (training_pass(model, Rows()) is None) == fails
        assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
        assert model.lm_head.weight.grad is gradient
        assert [n for n, p in model.named_parameters() if p.grad is not None] == [
            "transformer.wte.weight"
        ]  # tied
        assert torch.equal(state, torch.random.get_rng_state())
        assert model.training
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()


def test_recurrent_layers_are_timed_and_not_counted():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(TYPES, WIDTH), nn.LSTM(WIDTH, TYPES, batch_first=True)

        def forward(self, input_ids):
            return SimpleNamespace(logits=self.lstm(self.embedding(input_ids))[0])

    batch = training_pass(Recurrent(), Rows())
    assert batch.operations is None
    assert "operations" not in duration(batch, 100, 1, elsewhere=False)
    assert "none of the accelerator" in duration(batch, 100, 1, elsewhere=True)


def test_what_cannot_be_counted_has_memory_and_time(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no kernel")

    whole = training_pass(causal(), Rows())
    monkeypatch.setattr(module, "sdpa_kernel", refuse)
    batch = training_pass(causal(), Rows())
    assert batch.operations is None
    assert batch.cost == whole.cost
    monkeypatch.setattr(module, "_seconds", refuse)
    batch = training_pass(causal(), Rows())
    assert (batch.seconds, batch.cost) == (None, whole.cost)
    assert duration(batch, 100, 1, elsewhere=False) == "hours unknown"


def test_losses_of_another_meaning_are_not_asked():
    """A list of past losses, a function of something else: the logits are taken."""
    whole = training_pass(causal(), Rows())
    for losses in ([1.0], lambda: {}, lambda batch: [1.0], lambda batch: {"loss": 0.5}):
        model = causal()
        model.losses = losses
        assert training_pass(model, Rows()).operations == whole.operations


def test_a_batch_of_one_row():
    one, two = (training_pass(causal(), Rows(rows=rows)) for rows in (1, 2))
    assert one.rows == (1, 1)
    assert (two.operations, two.cost.memory > one.cost.memory) == (2 * one.operations, True)


@pytest.mark.parametrize(
    ("batches", "accumulated", "elsewhere", "says"),
    [
        (3600, 2, False, "passes about 1.0 h on the CPU (at least 3.6e+15 operations; 2 of 8 rows timed)"),
        (
            None,
            2,
            False,
            "passes of an update about 2 s on the CPU (at least 2.0e+12 operations; 2 of 8 rows timed)",
        ),
        (3_600_000, 1, True, "passes at least 3.6e+18 operations on each device, 10 h at 100 teraflops"),
    ],
)
def test_in_words(batches, accumulated, elsewhere, says):
    batch = TrainingPass(Cost("a training batch of 8 rows", 1), 1.0, (2, 8), 10**12)
    assert duration(batch, batches, accumulated, elsewhere=elsewhere) == says


@pytest.mark.parametrize(
    ("seconds", "timed", "real"),
    [
        (lambda rows: 0.3 * rows, 4, 30.0),  # rows alone
        (lambda rows: 0.8 + 0.01 * rows, 100, 1.8),  # the gradient of a large vocabulary, whatever the rows
        (lambda rows: 9.0 + 0.1 * rows, 16, 19.0),  # no more than the most
        (lambda rows: 1e-3 * rows, 100, 0.1),
    ],
)
def test_time_that_rows_share_is_not_multiplied(monkeypatch, seconds, timed, real):
    monkeypatch.setattr(module, "_seconds", lambda compute, rows: seconds(rows))
    rows, found = module._timed(None, 100)
    assert rows == timed
    assert found == pytest.approx(real)


def test_what_ends_a_training_is_said():
    """The passes of all batches, short ones at the ends of epochs; a budget and Lightning's own limit of time."""
    batch = TrainingPass(Cost("a training batch of 8 rows", 1), 3600.0, (2, 8), None)

    def said(plan, *callbacks):
        trainer = SimpleNamespace(accumulate_grad_batches=8, callbacks=list(callbacks))
        return _of_time(Built(trainer, None, None, {"accelerator": "cpu"}, plan=plan), batch)

    assert said(Plan(8, 2, 10)) == "passes about 40 h on the CPU (2 of 8 rows timed)"
    assert said(Plan(8, None)) == "passes about 2.7 days on the CPU (2 of 8 rows timed)"
    ends = said(Plan(None, None), TimeBudget(24), Timer({"hours": 5}))
    assert (
        ends
        == "passes of an update about 8.0 h on the CPU (2 of 8 rows timed); ends after 5.0 h at the latest"
    )


def test_products_of_experts_are_counted():
    """As many as where each expert is asked for itself."""
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": TYPES, "intermediate_size": 64, "max_position_embeddings": TIME, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    found = {}
    for how in ("eager", "grouped_mm"):
        torch.manual_seed(0)
        model = MixtralForCausalLM(MixtralConfig(**sizes, experts_implementation=how))
        found[how] = training_pass(model, Rows()).operations
    assert found["grouped_mm"] == found["eager"]


def test_logits_beside_a_loss():
    """As nanoGPT answers."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = causal()

        def forward(self, input_ids):
            return self.model(input_ids).logits, None

    assert training_pass(Pair(), Rows()).operations == training_pass(causal(), Rows()).operations


def test_a_busy_machine_is_said(monkeypatch):
    cost = Cost("a training batch of 8 rows", 1)
    said = duration(TrainingPass(cost, 1.0, (2, 8), None, busy=True), 60, 1, elsewhere=False)
    assert said == "passes about 1.0 min on the CPU as busy as it is (2 of 8 rows timed)"
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for load, busy in ((1.9, False), (2.1, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert training_pass(causal(), Rows()).busy is busy


def test_times_in_words():
    assert [in_time(s) for s in (0.5, 59, 60, 3599, 3600, 86400, 200_000)] == [
        "0.5 s", "59 s", "1.0 min", "60 min", "1.0 h", "24 h", "2.3 days",
    ]  # fmt: skip

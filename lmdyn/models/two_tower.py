"""Two language models trained together as one, which divide the work between them."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.linear_cross_entropy import linear_cross_entropy, target_log_probabilities
from lmdyn.models.learning_rate_schedules import ScheduledModule
from lmdyn.models.module import IGNORED, Batch
from lmdyn.models.pretraining_tools import gather_labelled, labelled_positions
from lmdyn.models.towers import LSTMTowers, TransformerTowers

Tower = Literal["elmo", "gpt", "bert"]
Output = Literal["standard", "printed"]
_OBJECTIVES: dict[str, str] = {"elmo": "cloze", "gpt": "causal", "bert": "masked"}


@dataclass
class TwoTowerOutput:
    """Output of a :class:`TwoTowerLanguageModel`.

    Attributes:
        logits: (batch, time, vocab) for the token at each position, or (n, vocab) at the requested positions.
    """

    logits: Tensor


class TwoTowerLanguageModel(ScheduledModule):
    """Parallel encoders of one configuration, trained together to predict tokens.

    Word vectors of width K·d, with K the number of towers, are mapped to d for each tower by a separate map; the
    towers' encodings of width d are concatenated, and predict the token by a softmax against the word vectors, which
    are tied. ``elmo`` predicts each token from those before and after it, ``gpt`` from those before it, ``bert``
    masked tokens from the whole row. The towers differ only in their random weights.

    Batches, from a :class:`~lmdyn.datamodules.PretrainingCorpus` with the objective ``cloze``, ``causal`` or
    ``masked``: ``input_ids``, ``labels`` (−100 except for tokens to predict), ``attention_mask`` if there is padding,
    on the right, and ``masked_positions`` if few tokens are labelled.

    Transformer towers run as one batched program; see :class:`~lmdyn.models.towers.TransformerTowers`.

    Sites: ``encodings.0``, ``encodings.1`` …, the encodings (batch, time, d) of each tower; ``embedding``.

    Logged: ``train_loss``; ``val_loss``, ``val_perplexity``, and the same with ``test_``; in nats per labelled token.

    Args:
        tower: ``elmo``, ``gpt`` or ``bert``.
        n_towers: number K of towers; 1 is the baseline without division.
        hidden_size: width d of a tower's encodings.
        num_layers: number of LSTM layers of each direction, or of transformer blocks.
        num_attention_heads: number of attention heads of a transformer block.
        intermediate_size: number of feed-forward units of a transformer block; None is 4·d.
        lstm_size: number of units of each LSTM layer, projected to d; None is d, without projection.
        max_position_embeddings: maximum length of a row of a transformer.
        dropout: dropout rate in training.
        output: ``standard``: layer norm, dense layer, GELU and layer norm between encodings and softmax, which has a
            bias, none of which the publication mentions; ``printed``: equation 1 exactly, exp(xᵀh), without these.
        init_range: deviation of all weights of embeddings and linear maps, normal and cut at two deviations (GPT-2's
            own initialisation uses a smaller deviation for the maps into the residual stream); LSTMs start with
            PyTorch's defaults.
        decay_power: after the warmup, it falls to 0 at ``decay_steps`` as ((N − t) / (N − warmup))^power; None keeps
            it constant.
        compile: whether to compile the towers with ``torch.compile`` for training.
        **kwargs: ``vocab_size``, ``optimizer`` (published: ``torch.optim.AdamW`` with ``betas: [0.9, 0.98]``),
            ``warmup_steps``, ``decay_steps`` and ``gradient_clip_val``, see
            :class:`~lmdyn.models.CausalLanguageModel`.

    Raises:
        ValueError: if the kind of tower or output is unknown, or if sizes are below 1 or do not match.

    Reference: He & Toyoizumi 2022, section 3.1, equation 1, table 1.

    Example:
        >>> model = TwoTowerLanguageModel("gpt", hidden_size=8, vocab_size=20)
        >>> model(torch.tensor([[2, 5, 3]])).logits.shape
        torch.Size([1, 3, 20])
    """

    def __init__(
        self,
        tower: Tower = "gpt",
        *,
        n_towers: int = 2,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_attention_heads: int = 2,
        intermediate_size: int | None = None,
        lstm_size: int | None = None,
        max_position_embeddings: int = 512,
        dropout: float = 0.1,
        output: Output = "standard",
        init_range: float = 0.02,
        decay_power: float | None = 1.0,
        compile: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(decay_power=decay_power, **kwargs)
        ends = ("_size", "_towers", "_layers", "_heads", "_embeddings")
        low = {k: v for k, v in self.hparams.items() if k.endswith(ends) and v is not None and v < 1}
        if low:
            raise ValueError(f"expected sizes of at least 1, got {', '.join(f'{k} {low[k]}' for k in low)}")
        if init_range <= 0:
            raise ValueError(f"expected init_range above 0, got {init_range}")
        self._objective = _OBJECTIVES[tower]
        self.tower, self.n_towers = tower, n_towers
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.lstm_size = lstm_size or hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.dropout = dropout
        self.output = output
        self.init_range = init_range
        self.compile_towers = compile
        if self.sizes_known():
            self.build()

    # Building ---------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the layers."""
        assert self.vocab_size is not None
        width = self.n_towers * self.hidden_size
        self.embedding = nn.Embedding(self.vocab_size, width)
        self.input_projection = nn.Linear(width, width)  # K maps to d, as one product
        self.towers: nn.Module
        if self.tower == "elmo":
            self.towers = LSTMTowers(
                self.n_towers, self.hidden_size, self.lstm_size, self.num_layers, self.dropout
            )
        else:
            self.position_embedding = nn.Embedding(self.max_position_embeddings, width)
            sizes = {"hidden_size": self.hidden_size, "num_hidden_layers": self.num_layers}
            self.towers = TransformerTowers(
                self.tower,
                self.n_towers,
                {**sizes, "num_attention_heads": self.num_attention_heads},
                intermediate_size=self.intermediate_size,
                dropout=self.dropout,
                init_range=self.init_range,
            )
        self.encodings = nn.ModuleList(nn.Identity() for _ in range(self.n_towers))
        """Identity modules that name the towers' encodings, by which observers find them."""
        self.head: nn.Module = nn.Identity()
        self.output_bias: nn.Parameter | None = None
        if self.output == "standard":
            self.head = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
            )
            self.output_bias = nn.Parameter(torch.zeros(self.vocab_size))
        self.embedding_dropout = nn.Dropout(self.dropout)
        own = [self.embedding, self.input_projection, *self.head.modules()]
        own += [] if self.tower == "elmo" else [self.position_embedding]
        for module in own:
            if isinstance(module, nn.Linear | nn.Embedding):
                deviation = self.init_range
                nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    # Running ----------------------------------------------------------------------------------------------

    def encode(
        self, input_ids: Int[Tensor, "batch time"], attention_mask: Int[Tensor, "batch time"] | None = None
    ) -> list[Float[Tensor, "batch time d"]]:
        """Compute the encodings of each tower.

        Raises:
            ValueError: if rows are longer than a transformer's ``max_position_embeddings``.
        """
        batch, length = input_ids.shape
        x = self.embedding(input_ids)
        if self.tower != "elmo":
            self.check_positions(length, self.max_position_embeddings)
            x = x + self.position_embedding.weight[:length]
        x = self.input_projection(self.embedding_dropout(x))
        x = x.view(batch, length, self.n_towers, self.hidden_size).permute(2, 0, 1, 3).contiguous()
        encoded = self.towers(x, attention_mask)
        return [name(encoding) for name, encoding in zip(self.encodings, encoded.unbind(0), strict=True)]

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | None = None,
        predict: Bool[Tensor, "batch time"] | None = None,
    ) -> TwoTowerOutput:
        """Compute logits of the token to predict at each position.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding, which is on the right; None without padding.
            predict: if given, project only these positions to the vocabulary, in row-major order.
        """
        hidden = torch.cat(self.encode(input_ids, attention_mask), -1)
        hidden = self.head(hidden if predict is None else hidden[predict])
        return TwoTowerOutput(nn.functional.linear(hidden, self.embedding.weight, self.output_bias))

    def predicted(self, batch: Batch) -> tuple[Float[Tensor, "n width"], Int[Tensor, "n"], Tensor]:
        """Return the input of the product with the word vectors, the labels, and their positions.

        The input contains at least the labelled positions. The positions are flat, of (batch, time).
        """
        hidden = torch.cat(self.encode(batch["input_ids"], batch.get("attention_mask")), -1)
        labels = batch["labels"]
        where = torch.arange(labels.numel(), device=labels.device)
        positions = batch.get("masked_positions")
        if positions is None and self.tower == "bert":
            positions = labelled_positions(labels)
        if positions is None:
            return self.head(hidden.flatten(0, 1)), labels.flatten(), where
        chosen, expected = gather_labelled(hidden, labels, positions)
        at = where.view_as(labels).gather(1, positions.clamp(min=0))
        return self.head(chosen.flatten(0, 1)), expected.flatten(), at.flatten()

    # Training and evaluation ------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Compile the towers, if requested."""
        if self.compile_towers:
            self.towers.compile()

    def training_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the cross-entropies of a batch in nats, and the number of labelled tokens."""
        hidden, labels, _ = self.predicted(batch)
        total = linear_cross_entropy(hidden, self.embedding.weight, self.output_bias, labels)
        return total, (labels != IGNORED).sum()

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor, Float[Tensor, "batch time"]]:
        """Return the input of the output layer, the labels, and their losses in nats, 0 for a token without one."""
        hidden, labels, where = self.predicted(batch)
        log_p = target_log_probabilities(hidden, self.embedding.weight, self.output_bias, labels)
        losses = log_p.new_zeros(batch["labels"].numel())
        there = labels != IGNORED
        losses[where[there]] = -log_p[there]
        return hidden, batch["labels"], losses.view_as(batch["labels"])

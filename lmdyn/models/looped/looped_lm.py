"""A causal language model that iterates its core: prelude, core × depth, coda; trained with random depths."""

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedConfig

from lmdyn.models.causal_lm import CausalOutput, CausalTransformer
from lmdyn.models.looped.looped_transformer import Initial, Injection, LoopedTransformer
from lmdyn.models.module import Batch

Distribution = Literal["fixed", "uniform", "poisson_lognormal"]


class LoopedLanguageModel(CausalTransformer):
    """A causal language model of recurrent depth, trained from scratch with a random number of iterations per update.

    Layers of a prelude read the text once; those of the core are iterated, and receive the prelude's output at each
    iteration; those of the coda read the last state. All are layers of one family of transformers; with ``injection:
    none``, ``prelude_layers: 0``, ``coda_layers: 0`` and ``norms: false``, the model is a Llama with shared layers
    (``initial: prelude`` makes the words its state 0).

    Each update has one depth, drawn by :func:`training_depth` from the number of completed updates; accumulated
    batches share it. Evaluation uses ``evaluation_depth``; ``forward(…, depth=n)``, or another value of the attribute
    ``evaluation_depth``, evaluates at other depths, also beyond those of training.

    Batches: ``input_ids``, ``labels``, and ``attention_mask`` if there is padding.

    Logged: ``train_loss``, ``train_depth``, ``val_loss``, ``val_perplexity``, ``test_loss``, ``test_perplexity``, in
    nats per token.

    Args:
        family: ``model_type`` of a causal model of transformers whose layers have the same interface as Llama's.
        config: arguments of the family's configuration, except ``vocab_size`` and ``num_hidden_layers``.
        prelude_layers: number of layers before the core, at least 0.
        core_layers: number of layers of an iteration, at least 1.
        coda_layers: number of layers after the core, at least 0.
        injection: how the prelude's output enters each iteration: ``concat``, ``add`` or ``none``.
        initial: the state at depth 0: ``zeros``, ``prelude`` (its output), or ``random``. In training, ``random``
            draws new standard normal numbers for each batch, as a pure function of seed, update, batch and rank;
            otherwise they are equal for all rows, drawn from the seed for each position.
        norms: whether to add norms after the prelude and after each iteration.
        depth: expected depth of training.
        depth_distribution: ``poisson_lognormal``, ``uniform`` or ``fixed``.
        depth_sigma: σ of the log-normal distribution.
        depth_seed: seed of depths and random states; the same for all runs of a profile unless it is given.
        evaluation_depth: number of iterations in evaluation; None means ``depth``.
        backprop_depth: number of last iterations of an update through which gradients are propagated; None means all.
        **kwargs: see :class:`~lmdyn.models.CausalLanguageModel`.

    Attributes:
        model: the layers, a :class:`LoopedTransformer`.
        evaluation_depth: number of iterations of a forward pass if ``depth`` is not given.

    Raises:
        ValueError: if numbers are out of range, if names do not exist, if the layers of the family differ; if rows are
            longer than its positions.

    Reference: Geiping et al. 2025 (recurrent depth); Dehghani et al. 2019 (universal transformers).

    Example:
        >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16)
        >>> model = LoopedLanguageModel(config=sizes, vocab_size=20, depth=4)
        >>> model(torch.tensor([[1, 2, 3]])).logits.shape, model(torch.tensor([[1, 2, 3]]), depth=9).logits.shape
        (torch.Size([1, 3, 20]), torch.Size([1, 3, 20]))
    """

    model: LoopedTransformer  # type: ignore[assignment]

    def __init__(
        self,
        family: str = "llama",
        config: dict[str, Any] | None = None,
        prelude_layers: int = 1,
        core_layers: int = 2,
        coda_layers: int = 1,
        injection: Injection = "concat",
        initial: Initial = "zeros",
        norms: bool = True,
        depth: int = 8,
        depth_distribution: Distribution = "poisson_lognormal",
        depth_sigma: float = 0.5,
        depth_seed: int = 0,
        evaluation_depth: int | None = None,
        backprop_depth: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(family, config, **kwargs)
        least = {"prelude_layers": 0, "core_layers": 1, "coda_layers": 0, "depth": 1}
        least |= {"evaluation_depth": 1, "backprop_depth": 1}
        values = {name: value for name, value in locals().items() if name in least and value is not None}
        if low := [f"{k} is {v}: expected at least {least[k]}" for k, v in values.items() if v < least[k]]:
            raise ValueError("; ".join(low))
        if "num_hidden_layers" in self.config:
            raise ValueError(
                "num_hidden_layers must not be in the config: set prelude_layers, core_layers and coda_layers instead"
            )
        self.parts = (prelude_layers, core_layers, coda_layers)
        self.injection = injection
        self.initial = initial
        self.norms = norms
        self.depth = depth
        self.depth_distribution = depth_distribution
        self.depth_sigma = depth_sigma
        self.depth_seed = depth_seed
        self.backprop_depth = backprop_depth
        self.evaluation_depth = depth if evaluation_depth is None else evaluation_depth
        if self.sizes_known():
            self.build()

    def build(self) -> None:
        """Create the layers, with the weights that transformers' initialisation draws."""
        layers = self.transformer()
        self.model = LoopedTransformer(
            layers, self.parts, self.injection, self.initial, self.norms, self.depth_seed
        )
        self.decoder = self.head(int(layers.config.hidden_size))

    def configuration(self) -> PreTrainedConfig:
        """Return the family's configuration, with the total number of layers."""
        config = super().configuration()
        config.num_hidden_layers = sum(self.parts)
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = ["full_attention"] * sum(self.parts)
        return config

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | None = None,
        depth: int | None = None,
        with_gradients: int | None = None,
        draw: torch.Generator | None = None,
    ) -> CausalOutput:
        """Compute logits at each position, from the tokens up to and including it.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding; None without padding.
            depth: number of iterations of the core, at least 0; None uses :attr:`evaluation_depth`.
            with_gradients: number of last iterations that have gradients; None means all.
            draw: generator of a random state at depth 0.

        Raises:
            ValueError: if rows are longer than the model's number of positions.
        """
        self.check_positions(input_ids.shape[1], getattr(self.model.config, "max_position_embeddings", None))
        hidden = self.model(
            input_ids,
            attention_mask,
            depth=self.evaluation_depth if depth is None else depth,
            with_gradients=with_gradients,
            draw=draw,
        )
        return CausalOutput(self.decoder(hidden))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the mean cross-entropy over the labelled tokens, in nats, at this update's depth; 0 if none."""
        step = self.trainer.global_step
        depth = training_depth(
            step, self.depth, self.depth_distribution, sigma=self.depth_sigma, seed=self.depth_seed
        )
        draw = None
        if self.initial == "random":
            number = np.random.SeedSequence([self.depth_seed, step, batch_idx, self.global_rank, 1])
            draw = torch.Generator().manual_seed(int(number.generate_state(1)[0]))
        loss = self.training_loss(batch, depth=depth, with_gradients=self.backprop_depth, draw=draw)
        return self.finish_training_step(*loss, batch_idx, train_depth=torch.tensor(float(depth)))


def training_depth(
    step: int, mean: int, distribution: Distribution, *, sigma: float = 0.5, seed: int = 0
) -> int:
    """Return the number of iterations in an update, a pure function of seed and step: equal on all ranks, resumable.

    ``uniform``: 1 … 2·mean − 1 with equal probability. ``poisson_lognormal``: 1 + Poisson(exp τ), with τ normal of
    mean ln(mean − 1) − σ²/2 and standard deviation σ: a heavy right tail, so depths far beyond the mean occur. The
    expectation is ``mean`` in each case (in the publication, mean + 1).

    Args:
        step: number of completed updates.
        mean: expected depth, at least 1.
        distribution: see above; ``fixed`` is the mean itself.
        sigma: σ of the log-normal distribution.
        seed: seed of all updates.

    Reference: Geiping et al. 2025, section 3.3.

    Example:
        >>> [training_depth(step, 4, "uniform") for step in range(8)]
        [6, 4, 7, 4, 4, 5, 4, 6]
    """
    if distribution == "fixed":
        return mean
    draw = np.random.default_rng([seed, step])
    if distribution == "uniform":
        return int(draw.integers(1, 2 * mean))
    if mean == 1:
        return 1
    rate = np.exp(draw.normal(np.log(mean - 1) - sigma**2 / 2, sigma))
    return 1 + int(draw.poisson(rate))

"""Prelude, core × depth and coda, from the layers of a model of transformers."""

from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask

Injection = Literal["none", "add", "concat"]
Initial = Literal["zeros", "random", "prelude"]


class LoopedTransformer(nn.Module):
    """Prelude, core × depth and coda of a decoder's layers, with the prelude's output injected at each iteration.

    e = prelude(embedding); s₀ by ``initial``; sᵢ₊₁ = norm(core(inject(sᵢ, e))); hidden = norm(coda(s_depth)).

    Args:
        layers: a new transformer with as many layers as all three parts together, which it takes over.
        parts: numbers of layers of prelude, core and coda.
        injection: ``concat``: a linear layer of [s, e]; ``add``: s + e; ``none``: s.
        initial: s₀: ``zeros``; ``prelude``: e; ``random``: standard normal numbers, see :meth:`initial_state`.
        norms: whether to add norms after the prelude and after each iteration, without which states may grow with
            depth.
        seed: seed of s₀.

    Raises:
        ValueError: if the layers of the family have another interface than Llama's.
    """

    def __init__(
        self,
        layers: PreTrainedModel,
        parts: tuple[int, int, int],
        injection: Injection,
        initial: Initial,
        norms: bool,
        seed: int,
    ) -> None:
        super().__init__()
        given: Any = layers
        config: PreTrainedConfig = given.config
        if missing := [name for name in _PARTS if not hasattr(given, name)]:
            raise ValueError(
                f"{type(given).__name__} has no {', '.join(missing)}: set `family` to a family with layers like "
                "Llama's, such as llama, olmo2 or qwen3"
            )
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
            raise ValueError(
                f"{type(given).__name__} has layers without full attention: set another `family`, such as llama"
            )
        size = int(config.hidden_size)
        self.config = config
        self.injection = injection
        self.initial = initial
        self.seed = seed
        self.embed_tokens = given.embed_tokens
        self.rotary_emb = given.rotary_emb
        whole = list(given.layers)
        ends = np.cumsum(parts)
        self.prelude = nn.ModuleList(whole[: ends[0]])
        self.core = nn.ModuleList(whole[ends[0] : ends[1]])
        self.coda = nn.ModuleList(whole[ends[1] : ends[2]])
        self.norm = given.norm
        norm = type(given.norm)
        self.prelude_norm = norm(size, eps=config.rms_norm_eps) if norms else None
        self.core_norm = norm(size, eps=config.rms_norm_eps) if norms else None
        self.adapter = nn.Linear(2 * size, size, bias=False) if injection == "concat" else None
        if self.adapter is not None:  # maps two vectors of this size to one
            nn.init.normal_(self.adapter.weight, std=(2 * size) ** -0.5)
        start = None
        if initial == "random":
            draw = torch.Generator().manual_seed(seed)
            start = torch.randn(int(config.max_position_embeddings), size, generator=draw)
        self.register_buffer("start", start, persistent=False)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word vectors."""
        return cast(nn.Module, self.embed_tokens)

    def initial_state(
        self, e: Float[Tensor, "batch time hidden"], draw: torch.Generator | None = None
    ) -> Float[Tensor, "batch time hidden"]:
        """Return the state at depth 0, for the output of the prelude.

        Args:
            e: output of the prelude.
            draw: generator of a random state for each token of each row; None uses the state that all rows share,
                drawn from the seed for each position.
        """
        if self.initial == "prelude":
            return e
        if self.initial == "zeros":
            return torch.zeros_like(e)
        if draw is not None:
            return torch.randn(e.shape, generator=draw).to(e)
        return cast(Tensor, self.start)[: e.shape[1]].to(e).expand(e.shape)

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | None = None,
        *,
        depth: int,
        with_gradients: int | None = None,
        draw: torch.Generator | None = None,
    ) -> Float[Tensor, "batch time hidden"]:
        """Compute the output of the last norm.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding.
            depth: number of iterations of the core, at least 0.
            with_gradients: number of last iterations that have gradients; None means all.
            draw: see :meth:`initial_state`.
        """
        e = self.embed_tokens(input_ids)
        positions = torch.arange(e.shape[1], device=e.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=e,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=positions,
        )
        given = {
            "attention_mask": mask,
            "position_ids": positions,
            "position_embeddings": self.rotary_emb(e, position_ids=positions),
        }
        for layer in self.prelude:
            e = layer(e, **given)
        if self.prelude_norm is not None:
            e = self.prelude_norm(e)
        state = self.initial_state(e, draw)
        without = 0 if with_gradients is None else max(0, depth - with_gradients)
        for i in range(depth):
            with torch.set_grad_enabled(torch.is_grad_enabled() and i >= without):
                if self.adapter is not None:
                    state = self.adapter(torch.cat([state, e], -1))
                elif self.injection == "add":
                    state = state + e
                for layer in self.core:
                    state = layer(state, **given)
                if self.core_norm is not None:
                    state = self.core_norm(state)
        for layer in self.coda:
            state = layer(state, **given)
        return cast(Tensor, self.norm(state))


_PARTS = ("embed_tokens", "layers", "norm", "rotary_emb")

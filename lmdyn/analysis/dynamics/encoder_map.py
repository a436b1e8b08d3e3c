"""A model as a dynamical system: the map of token vectors that it iterates, initial states of texts, and readouts."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.dynamics.maps.copies import apart, private_copy, with_first_tensor
from lmdyn.analysis.dynamics.maps.core import (
    Core,
    RecurrentError,
    core_of,
    refuse_recurrent,
    repeated_modules,
)
from lmdyn.analysis.dynamics.maps.passage import NoMapError, Passage, Recorded
from lmdyn.analysis.dynamics.maps.steps import Steps, tolerance
from lmdyn.analysis.dynamics.maps.texts import (
    padding_of,
    repeated,
    resized,
    some_texts,
    tokens_of,
)
from lmdyn.analysis.inspection.activations import first_tensor, paths_of, resolve_sites
from lmdyn.analysis.inspection.batches import rows_at, rows_of
from lmdyn.analysis.inspection.blocks import static_blocks
from lmdyn.analysis.inspection.forward import Batch, Forward, call_module, logits_of
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites

__all__ = ["EncoderMap"]

Map = Callable[[Tensor], Tensor]


class EncoderMap:
    """The layers that a model applies repeatedly, as a map x ↦ f(x) of all token vectors.

    ``x`` is (batch, tokens, hidden). The map computes what the module's own forward computes between the end of one
    iteration and the end of the next: its layers, norms and activation, without dropout; what it adds or concatenates
    to the state in between; its own positions, and its own causal mask. A cache is never part of it. The module is
    copied when the map is created, in the requested precision and in eval mode, and may continue training. GELU's tanh
    approximation is computed by one kernel, equal up to rounding. What a model always computes in float32 (Llama's
    norms, the softmax of eager attention) rounds like float32 in float64, too.

    *The core*, the layers of one iteration, is given by ``sites`` or found: one layer that is called repeatedly
    (ALBERT, a looped Llama), a group of several, or the layers that repeat between a prelude and a coda. The state is
    the output of its last layer; the state at depth 0 is the one that leads to the input of its first layer. The
    model's own forward is run from one state to the next, and the modules before return their recorded outputs for the
    same batch. It is measured on the example that the steps are one map: from the same state, each iteration must lead
    to the same next state.

    *Rows.* If the step depends on the text itself (:attr:`injected`), or on masks of it (:attr:`masked`), the map
    belongs to a batch: ``f.of(batch)`` is the map of its rows, once or several times one after the other, as in
    ``torch.cat([x, x + δ])``. Otherwise, ``f`` is applied to any number of rows and tokens.

    If all layers differ (BERT, GPT), there is no such map: :attr:`maps` are the layers, and time is depth.

    Args:
        module: a model of transformers, a module that contains one, or your own model.
        batch: an example batch, of which the first row is run. With a mask: the rows that the map will be applied to.
        dtype: float32 or float64.
        masked: whether to attend only to positions with ``attention_mask`` 1 in the batch. The map is then that of the
            rows of this batch, once or several times one after the other. The publication uses no mask.
        forward: see ``call_module``, for modules whose forward does not take Hugging Face's arguments.
        attention: implementation of transformers: ``sdpa``, or ``eager``, required by forward-mode differentiation.
        sites: display name to module path of the layers of the core, in order; by default ``layer_sites``, else the
            blocks of ``find_sites`` (the encoder's), else the outermost modules that the forward calls several times.
        seed: seed of what the module draws in its forward, such as a random state at depth 0.

    Attributes:
        maps: the maps that are applied in a pass through the model, in order; for a core, the same map repeatedly.
        shared: whether they are all the same map.
        layers: the layers of a single application (copies).
        unit: paths of these layers.
        masked: whether attention ignores padding.
        injected: whether the step depends on the text beyond the state.
        width: size of a token's vector.

    Raises:
        ValueError: if no layers are found, or recurrent ones; the steps of a core are not one map of the state; layers
            are not a map of the token vectors, because the model changes these in between or the width differs; for
            another precision, a mask without ``attention_mask``, or a batch without tokens.

    Reference: Inoue et al. 2022, equations 1 to 4; for loops with an injected input, Geiping et al. 2025.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertModel(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> batch = {"input_ids": torch.tensor([[1, 5, 7]])}
        >>> f = EncoderMap(model, batch, dtype=torch.float64)
        >>> x = f.start(batch)
        >>> for _ in range(3):
        ...     x = f(x)
        >>> f.shared, len(f.maps), torch.allclose(x.float(), model(**batch).last_hidden_state, atol=1e-5)
        (True, 3, True)

        A loop with an input that is injected at each step:

        >>> class Loop(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.core, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
        ...     def forward(self, input_ids, depth=6):
        ...         e = self.embed(input_ids)
        ...         x = torch.zeros_like(e)
        ...         for _ in range(depth):
        ...             x = torch.tanh(self.core(x + e))
        ...         return self.out(x)
        >>> loop = Loop()
        >>> f = EncoderMap(loop, batch)
        >>> f.injected, f.unit
        (True, ('core',))
        >>> g, x = f.of(batch), f.start(batch)
        >>> torch.allclose(f.finish(batch, g(g(x))), loop(batch["input_ids"], depth=2), atol=1e-6)
        True
    """

    def __init__(
        self,
        module: nn.Module,
        batch: Batch,
        *,
        dtype: torch.dtype = torch.float32,
        masked: bool = False,
        forward: Forward | None = None,
        attention: str = "sdpa",
        sites: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        if masked and "attention_mask" not in batch:
            raise ValueError(f"masked=True requires an attention_mask, got {', '.join(sorted(batch))}")
        configs = [getattr(m, "config", None) for m in module.modules()]
        if forward is None and any(getattr(config, "is_encoder_decoder", False) for config in configs):
            module = encoder_of(module)
        self.masked = masked
        self._forward = forward
        self._seed = seed
        given = self._read(batch)
        if not any(value.numel() for value in given.values()):
            raise ValueError(
                f"the batch has no tokens in {', '.join(sorted(batch)) or 'any entry'}: pass input_ids (rows, tokens)"
            )
        self._texts = some_texts(given, {0, *padding_of(configs)})
        rows = given if masked else self._texts[0]
        self._sites = dict(sites) if sites is not None else None
        self._module = private_copy(module, dtype, attention)
        self._steps = steps = self._found(rows)
        self.unit = steps.unit
        self._n = steps.n
        self.width = steps.width
        self.injected = steps.injected
        self.shared = self._n > 1
        self.layers: tuple[nn.Module, ...] = tuple(steps.passage.layers[path] for path in self.unit)
        self._ends = False  # whether it was checked that the part after the core reads only the last state
        self._batch: dict[str, Tensor] | None = rows if masked else None
        self._bind()

    def _bind(self) -> None:
        self._known: dict[tuple[int, int], list[Map]] = {}
        self._finished: tuple[Batch, int, Recorded] | None = None
        layers: list[Map] = [partial(self._layer, i) for i in range(len(self.unit))]
        self.maps: list[Map] = [self] * self._n if self.shared else layers

    # ---------------------------------------------------------------- the core

    def _found(self, rows: Mapping[str, Tensor]) -> Steps:
        """Return the steps of the given layers; of the blocks, if they pass the state on; or of a repeated module."""

        def run() -> Any:
            return call_module(self._module, rows, forward=self._forward)

        model = type(self._module).__name__
        if self._sites is not None:
            found = resolve_sites(self._module, self._sites)
            layers = {self._sites[name]: layer for name, layer in found.items()}
            refuse_recurrent(layers, self._module)
            core = core_of(self._order(layers, rows))
            if silent := sorted(layers.keys() - {*core.unit}):
                raise ValueError(
                    f"`sites` names modules that do not run in every iteration of {model} ({', '.join(silent)}): name "
                    f"only layers of one iteration. Each iteration runs {', '.join(core.unit)}"
                )
            return self._steps_of(layers, core)
        refused: ValueError | None = None
        blocks: tuple[dict[str, nn.Module], Core] | None = None
        try:
            layers = self._found_layers(rows)
            order = self._order(layers, rows)
            if not order:
                raise ValueError(f"{model} did not run {', '.join(layers)}: name its layers with `sites`")
            blocks = layers, core_of(order)
            return self._steps_of(*blocks, chained=True)
        except RecurrentError:
            raise
        except ValueError as error:
            refused = error
        try:
            ids = {name: t for name, t in rows.items() if name == "input_ids"}
            loops = repeated_modules(self._module, run, ids)
        except Exception as failed:
            raise ValueError(
                f"lmdyn cannot run {model}: {type(failed).__name__}: {failed}. Check batch and `forward` ({refused})"
            ) from failed
        for layers in loops:
            core = core_of(self._order(layers, rows))
            # the last layers of a unit may read the state and not carry it
            for end in range(len(core.unit), 0, -1) if core.n > 1 else ():
                try:
                    return self._steps_of(layers, Core(core.unit[:end], core.n))
                except NoMapError as error:
                    refused = error if blocks is None else refused
        if blocks is not None and blocks[1].n > 1:
            return self._steps_of(*blocks)
        raise refused

    def _order(self, layers: Mapping[str, nn.Module], rows: Mapping[str, Tensor]) -> list[str]:
        """Return the paths of layers in the order in which a forward pass calls them."""
        seen = Passage(self._module, layers, self._forward, self._seed).record(rows)
        return [str(call.path) for call in seen.layers]

    def _steps_of(self, layers: Mapping[str, nn.Module], core: Core, chained: bool = False) -> Steps:
        chosen = {path: layers[path] for path in dict.fromkeys(core.unit)}
        passage = Passage(self._module, chosen, self._forward, self._seed)
        return Steps(passage, core.unit, core.n, self._texts, chained=chained)

    def _found_layers(self, rows: Batch) -> dict[str, nn.Module]:
        try:
            sites = layer_sites(self._module)
        except ValueError:
            recurrent = {p: m for p, m in paths_of(self._module).items() if isinstance(m, nn.RNNBase)}
            if recurrent or "input_ids" not in rows or not static_blocks(self._module):
                refuse_recurrent(recurrent, self._module)
                raise
            found = find_sites(self._module, rows, self._forward)  # of several lists, the one that runs
            sites = {name: path for name, path in found.sites.items() if found.kinds[name] == "block"}
            if not sites:
                raise
        layers = {path: resolve_sites(self._module, {"layer": path})["layer"] for path in sites.values()}
        refuse_recurrent(layers, self._module)
        return layers

    # ---------------------------------------------------------------- rows

    def of(self, batch: Batch) -> "EncoderMap":
        """Return the map of the rows of a batch; the map itself if the step depends on the state only.

        Args:
            batch: tensors by name. The map is then applied to states of these rows, in this order, once or several
                times one after the other.
        """
        if not (self.injected or self.masked):
            return self
        bound = copy.copy(self)
        bound._batch = self._read(batch)
        bound._bind()
        return bound

    def part(self, rows: Tensor | slice) -> "EncoderMap":
        """Return the map of some of the rows that it belongs to; the map itself if it belongs to none.

        Args:
            rows: their numbers, or a mask of all rows.
        """
        return self if self._batch is None else self.of(rows_at(self._batch, rows))

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        """Return the inputs of the forward."""
        left_out = () if self.masked else ("attention_mask",)
        return {k: v for k, v in batch.items() if isinstance(v, Tensor) and v.ndim and k not in left_out}

    def _applied_to(self, x: Tensor) -> list[Map]:
        """Return the layers of an iteration, or the step, for this number of rows and tokens."""
        rows, tokens = x.shape[:2]
        if (rows, tokens) not in self._known:
            # kept as long as the map: CUDA graphs of it read these arguments
            self._known[rows, tokens] = self._steps.bind(self._text(rows, tokens))
        return self._known[rows, tokens]

    def _text(self, rows: int, tokens: int) -> dict[str, Tensor]:
        """Return the batch with this number of rows; for a map that belongs to none, any text of this length."""
        if self._batch is not None:
            count = rows_of(self._batch)
            length = tokens_of(self._batch)
            if rows % count or (length is not None and length != tokens):
                what = "masks" if self.masked else "texts"
                raise ValueError(
                    f"the map has {what} of size ({count}, {length or tokens}), but the state has (rows, tokens) = "
                    f"({rows}, {tokens}): apply the map to states of all rows of its batch, in order, once or repeated"
                )
            return repeated(self._batch, rows // count)
        if self.injected:
            raise ValueError(
                "each step of this EncoderMap `f` depends on the text: for the texts of a batch, apply `f.of(batch)`"
            )
        return resized(self._texts[0], rows, tokens)

    # ---------------------------------------------------------------- states

    def __call__(self, x: Float[Tensor, "batch tokens hidden"]) -> Float[Tensor, "batch tokens hidden"]:
        """Return the token vectors one step later.

        Raises:
            ValueError: if the layers differ, or if the map belongs to other rows.
        """
        if not self.shared:
            raise ValueError(
                f"{type(self._module).__name__} runs each of its {len(self.unit)} layers once, so a time step is a "
                "layer: use the sequence `maps` of this EncoderMap, with at most one step for each layer"
            )
        for step in self._applied_to(x) if len(x) else ():  # a process may have no rows
            x = step(x)
        return x

    def _layer(self, i: int, x: Float[Tensor, "batch tokens hidden"]) -> Float[Tensor, "batch tokens hidden"]:
        """Apply one of the layers of a model whose layers differ."""
        return self._applied_to(x)[i](x) if len(x) else x

    def start(self, batch: Batch) -> Float[Tensor, "batch tokens hidden"]:
        """Return the initial states of texts: the state at depth 0, for ALBERT after embedding and projection.

        Args:
            batch: ``input_ids`` (batch, tokens), and the other arguments of the module's forward; an
                ``attention_mask`` has no influence here.
        """
        return self._steps.start(self._read(batch)).detach()

    def finish(self, batch: Batch, x: Float[Tensor, "batch tokens hidden"]) -> Any:
        """Return the output of the module if ``x`` is the state at the end of its core.

        Args:
            batch: a batch of the same rows; x may contain them several times one after the other.
            x: the state.

        Returns:
            The output of the module's forward in the map's precision, usually with ``.logits``.

        Raises:
            NoMapError: if the output also depends on states before the last one.
        """
        if not self._ends:
            self._check_ending()
            self._ends = True
        times = len(x) // max(1, rows_of(self._read(batch)))
        if self._finished is None or self._finished[0] is not batch or self._finished[1] != times:
            rows = repeated(self._read(batch), times)
            self._finished = (batch, times, self._steps.passage.record(rows, until=len(self.unit)))
        return self._steps.passage.finish(self._finished[2], x, len(self.unit) * self._n)

    def _check_ending(self) -> None:
        """Check that the part after the core reads only its last state: otherwise other depths are unknown."""
        if self._n == 1:
            return
        passage, example = self._steps.passage, self._texts[0]
        whole = passage.record(example)
        last = cast(Tensor, whole.layers[-1].answer)
        unit = len(self.unit)
        expected = _answer(whole.output)
        first = passage.record(example, until=unit)
        if self._n == 2:  # later states are those of the first iteration: with two, they must be others
            for call in first.layers:
                call.output = with_first_tensor(call.output, 1.5 * cast(Tensor, call.answer) + 0.5)
        off = apart(_answer(passage.finish(first, last, unit * self._n)), expected)
        if off > tolerance(expected.dtype):
            raise NoMapError(
                f"the output of {type(self._module).__name__} depends on the last state and on earlier states (by "
                f"{off:.1e} of the largest entry): set `sites` to layers that pass only their last state to the output"
            )


def _answer(output: Any) -> Tensor:
    """Return the logits, or the first tensor."""
    try:
        return logits_of(output)
    except ValueError:
        return cast(Tensor, first_tensor(output))

"""The weight matrices of a module, by name: whole, blocks of fused ones, stacks of experts, token tables."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import paths_of, plain_path
from lmdyn.analysis.parameters.linear_weight import is_linear, linear_shape

__all__ = [
    "FoundMatrices",
    "TokenTables",
    "WeightMatrix",
    "counterparts",
    "find_matrices",
    "kinds",
    "of_equal_shapes",
    "token_tables",
]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+|(?<=[a-z])\d+(?=\.)")

_GATES = {  # rows of the fused weights of torch's recurrent layers, in their order
    nn.LSTM: ("input", "forget", "cell", "output"),
    nn.LSTMCell: ("input", "forget", "cell", "output"),
    nn.GRU: ("reset", "update", "new"),
    nn.GRUCell: ("reset", "update", "new"),
}


@dataclass(frozen=True)
class WeightMatrix:
    """One parameter as matrices.

    Attributes:
        site: path of its module, with the parameter's own name unless that is ``weight``.
        name: name of the parameter in ``module.named_parameters()``.
        parameter: the parameter; possibly sharded.
        stacked: number of matrices, that is the product of the leading dimensions; 1 for one matrix.
        rows: rows of each.
        columns: columns of each.
        parts: first and last row, exclusive, of named blocks, such as the gates of an LSTM; empty if there are none.
    """

    site: str
    name: str
    parameter: Tensor
    stacked: int
    rows: int
    columns: int
    parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def shaped(self, values: Tensor) -> Float[Tensor, "stacked rows columns"]:
        """Return values of the parameter's shape as matrices."""
        return values.reshape(self.stacked, self.rows, self.columns)


@dataclass(frozen=True)
class FoundMatrices:
    """Result of :func:`find_matrices`.

    Attributes:
        matrices: the matrices, in the order of the model.
        notes: sentences on parameters that are read as stacks or left out.
    """

    matrices: tuple[WeightMatrix, ...]
    notes: tuple[str, ...]


def find_matrices(module: nn.Module) -> FoundMatrices:
    """Find the parameters that are matrices: at least two rows and two columns. No weights are read.

    A parameter that several modules share (tied weights) is found once, under its first name; so is a layer that runs
    several times (ALBERT). Vectors (biases, scales of norms) are left out. Filters of convolutions are matrices of one
    row for each output channel. Other parameters of more than two dimensions are stacks of matrices, as in batched
    products (experts): the last two dimensions are rows and columns. Parameters that are not of floating point
    (quantized weights) are left out, with a note.

    Args:
        module: any module, wrapped or not.

    Example:
        >>> found = find_matrices(nn.ModuleDict({"lstm": nn.LSTM(3, 2), "out": nn.Linear(2, 5)}))
        >>> [(m.site, m.rows, m.columns, list(m.parts)) for m in found.matrices][1:]
        [('lstm.weight_hh_l0', 8, 2, ['input', 'forget', 'cell', 'output']), ('out', 5, 2, [])]
    """
    matrices, notes = [], []
    owners = {plain_path(path): m for path, m in module.named_modules()}
    for full, parameter in module.named_parameters():
        path, _, own = plain_path(full).rpartition(".")
        site = path if own == "weight" and path else plain_path(full)
        shape = [n for n in parameter.shape[:-2] if n != 1] + list(parameter.shape[-2:])
        owner = owners.get(path)
        if isinstance(owner, nn.modules.conv._ConvNd):
            shape = [len(parameter), math.prod(parameter.shape[1:])]
        if len(shape) < 2 or min(shape[-2:]) < 2:
            continue
        if not parameter.is_floating_point():
            notes.append(f"lmdyn leaves out {site} of type {str(parameter.dtype).removeprefix('torch.')}")
            continue
        stacked, (rows, columns) = math.prod(shape[:-2]), shape[-2:]
        if stacked > 1:
            notes.append(
                f"{site} {tuple(parameter.shape)} is a stack of {stacked} matrices {rows} × {columns}"
            )
        names = _GATES.get(type(owner), ()) if own.startswith(("weight_ih", "weight_hh")) else ()
        height = rows // len(names) if names else 0
        parts = {name: (i * height, (i + 1) * height) for i, name in enumerate(names) if height > 1}
        matrices.append(WeightMatrix(site, full, parameter, stacked, rows, columns, parts))
    return FoundMatrices(tuple(matrices), tuple(notes))


def of_equal_shapes(matrices: Iterable[WeightMatrix], entries: int) -> list[list[WeightMatrix]]:
    """Group matrices of one shape, type and device, which can be decomposed together.

    Args:
        matrices: the matrices.
        entries: most entries of a group of several.

    Returns:
        The groups, in the order of the first matrix of each shape.
    """
    groups: dict[Any, list[list[WeightMatrix]]] = {}
    for m in matrices:
        same = groups.setdefault((m.rows, m.columns, m.parameter.dtype, m.parameter.device), [[]])
        held = sum(other.parameter.numel() for other in same[-1])
        if same[-1] and held + m.parameter.numel() > entries:
            same.append([])
        same[-1].append(m)
    return [group for same in groups.values() for group in same]


def counterparts(matrices: Iterable[WeightMatrix], other: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the same names and shapes in another module, by names of the matrices.

    Parts of names that wrappers insert do not count; tied parameters have all their names.
    """
    theirs = {plain_path(name): p for name, p in other.named_parameters(remove_duplicate=False)}
    found = {m.name: (m, theirs.get(plain_path(m.name))) for m in matrices}
    return {name: p for name, (m, p) in found.items() if p is not None and p.shape == m.parameter.shape}


def kinds(paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the kind of each path, with ``*`` for numbers, and its first number; "" if its kind has no other one.

    Example:
        >>> found = kinds(["h.0.attn.c_proj", "h.3.attn.c_proj", "lstm.weight_hh_l1", "wte"])
        >>> list(found.values())
        [('h.*.attn.c_proj', '0'), ('h.*.attn.c_proj', '3'), ('lstm.weight_hh_l*', ''), ('wte', '')]
    """
    numbers: dict[str, dict[str, str]] = {}
    for path in paths:
        found = _NUMBER.search(path)
        numbers.setdefault(_NUMBER.sub("*", path), {})[path] = found[0] if found else ""
    return {
        path: (kind, number if len(set(own.values())) > 1 else "")
        for kind, own in numbers.items()
        for path, number in own.items()
    }


@dataclass(frozen=True)
class TokenTables:
    """The vectors of the tokens at both ends of a language model.

    Attributes:
        inputs: weight of the token embedding, (tokens, d₁).
        outputs: weight of the output layer, (tokens, d₂).
        site: path of the output layer.
        tied: whether both are one parameter.
    """

    inputs: Tensor
    outputs: Tensor
    site: str
    tied: bool


def token_tables(module: nn.Module) -> TokenTables | str:
    """Find the token embedding and the output layer of a language model by its modules, without a forward pass.

    They are those that a model of transformers names; otherwise an ``nn.Embedding`` and the only linear layer with as
    many outputs as it has tokens. The embedding is the one that fits the last linear layer, otherwise the largest.

    Returns:
        The tables, or a sentence why they are unknown.

    Example:
        >>> parts = {"tokens": nn.Embedding(9, 4), "positions": nn.Embedding(16, 4), "out": nn.Linear(4, 9)}
        >>> found = token_tables(nn.ModuleDict(parts))
        >>> found.site, found.tied, tuple(found.inputs.shape)
        ('out', False, (9, 4))
    """
    modules = paths_of(module)
    paths = {id(m): path for path, m in reversed(modules.items())}
    for inputs, outputs in _named_by_transformers(modules):
        if len(inputs.weight) == len(outputs.weight):
            site = paths.get(id(outputs), "logits")
            return TokenTables(inputs.weight, outputs.weight, site, inputs.weight is outputs.weight)
    embeddings = [m for m in modules.values() if isinstance(m, nn.Embedding)]
    if not embeddings:
        return f"{type(module).__name__} has no nn.Embedding"
    linear = [(path, m, linear_shape(m)) for path, m in modules.items() if is_linear(m)]
    last = [shape for *_, shape in linear[-1:]]  # there may be fewer characters than positions
    # of an embedding as wide as high, a layer of the same shape may project anything
    fits = {m for m in embeddings if (*m.weight.shape,) in last and m.num_embeddings != m.embedding_dim}
    table = max(fits or embeddings, key=lambda m: m.num_embeddings)
    if sum(m.num_embeddings == table.num_embeddings and m is not table for m in embeddings):
        return f"several embeddings of {type(module).__name__} have {table.num_embeddings} rows"
    layers = [(path, m) for path, m, (outputs, _) in linear if outputs == table.num_embeddings]
    if len(layers) != 1:
        return (
            f"{len(layers)} linear layers of {type(module).__name__} have one output for each of "
            f"{table.num_embeddings} tokens"
        )
    ((site, layer),) = layers
    weight: Any = getattr(layer, "base_layer", layer).weight
    return TokenTables(table.weight, weight, site, weight is table.weight)


def _named_by_transformers(modules: Mapping[str, nn.Module]) -> Iterator[tuple[Any, Any]]:
    """Yield input embedding and output layer of each model that names them and has both."""
    for m in modules.values():
        if not (hasattr(m, "get_input_embeddings") and hasattr(m, "get_output_embeddings")):
            continue
        named: Any = m
        try:
            pair = named.get_input_embeddings(), named.get_output_embeddings()
        except (NotImplementedError, AttributeError):
            continue
        tables = [getattr(table, "weight", None) for table in pair]
        if all(isinstance(table, Tensor) and table.ndim == 2 for table in tables):
            yield pair

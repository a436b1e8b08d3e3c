"""Tools for pretraining a transformer: initial weights, labelled positions, memory."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lmdyn.models.module import IGNORED

Initialization = Literal["truncated_normal", "clipped_normal", "normal", "normal_everywhere"]
"""Distribution of the initial weights."""


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Do not store activations within layers in training, but recompute them in the backward pass.

    transformers does this for BERT and ELECTRA; ALBERT's groups of layers are wrapped here.
    """
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable()
        return
    for group in cast(Any, model.base_model).encoder.albert_layer_groups:
        plain = group.forward
        group.forward = partial(_checkpointed, group, plain)


def _checkpointed(module: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return (
        checkpoint(plain, *args, use_reentrant=False, **kwargs) if module.training else plain(*args, **kwargs)
    )


@torch.no_grad()
def draw_weights(model: PreTrainedModel, how: Initialization = "truncated_normal") -> None:
    """Draw the weights of matrices and tables again, normal with the configuration's deviation σ.

    Biases and norms keep their values of transformers (0; 1 and 0), and the row of the padding token is 0. All methods
    draw the same numbers from the global generator, so weights of one seed correspond: they are equal except those
    beyond two deviations, 4.6 % of them.

    - ``truncated_normal``: cut at two deviations and drawn again beyond, as TensorFlow's initialiser does; the
      deviation is then 0.88 σ.
    - ``clipped_normal``: values beyond two deviations are set to two deviations; the deviation is 0.96 σ.
    - ``normal``: not cut.
    - ``normal_everywhere``: not cut, also for the gains of norms, which are then about 0, not 1.

    Example:
        >>> from transformers import BertConfig, BertForPreTraining
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> model = BertForPreTraining(config)
        >>> draw_weights(model)
        >>> model.bert.embeddings.word_embeddings.weight.abs().max().item() <= 0.04
        True
    """
    deviation = float(getattr(model.config, "initializer_range", 0.02))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            _draw(module.weight, deviation, how)
    if how == "normal_everywhere":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                _draw(module.weight, deviation, how)
    for module in model.modules():  # a decoder may share the table, and follows later
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()


def _draw(weight: Tensor, deviation: float, how: Initialization) -> None:
    """Draw one tensor; for every method, the generator ends in the state that the truncated normal leaves."""
    first = None
    if how != "truncated_normal":
        with torch.random.fork_rng([weight.device] if weight.is_cuda else []):
            first = torch.empty_like(weight).normal_(0, deviation)
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if first is not None:
        weight.copy_(first.clamp_(-2 * deviation, 2 * deviation) if how == "clipped_normal" else first)


def labelled_positions(labels: Int[Tensor, "batch time"]) -> Int[Tensor, "batch p"]:
    """Return the positions of labels in each row, −100 if a row has fewer than others; synchronizes with the device.

    Example:
        >>> labelled_positions(torch.tensor([[-100, 5, 6], [7, -100, -100]]))
        tensor([[   1,    2],
                [   0, -100]])
    """
    there = labels != IGNORED
    most = int(there.sum(1).max())
    order = torch.argsort((~there).long(), dim=1, stable=True)[:, :most]
    return torch.where(there.gather(1, order), order, IGNORED)


def gather_labelled(
    hidden: Float[Tensor, "batch time d"],
    labels: Int[Tensor, "batch time"],
    positions: Int[Tensor, "batch p"],
) -> tuple[Float[Tensor, "batch p d"], Int[Tensor, "batch p"]]:
    """Gather vectors and labels at some positions of each row; the label is −100 if a row has fewer positions.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6], [7, -100, -100]])
        >>> gather_labelled(torch.zeros(2, 3, 4), labels, labelled_positions(labels))[1]
        tensor([[   5,    6],
                [   7, -100]])
    """
    at = positions.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
    return hidden.gather(1, at), labels_at(labels, positions)


def labels_at(labels: Int[Tensor, "batch time"], positions: Int[Tensor, "batch p"]) -> Int[Tensor, "batch p"]:
    """Return the labels at some positions of each row; −100 if a row has fewer positions."""
    return labels.gather(1, positions.clamp(min=0)).masked_fill(positions == IGNORED, IGNORED)

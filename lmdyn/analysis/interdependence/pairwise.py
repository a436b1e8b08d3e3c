"""Interdependence of words in an LSTM: by how much the contributions of two words fail to add up."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.interdependence.decomposition import (
    States,
    Variant,
    advance,
    contextual_decomposition,
    gates_of,
    recurrent,
)
from lmdyn.analysis.interdependence.lstm_layers import State, check_decoder, lstm_layers, real_steps

__all__ = ["PairwiseInterdependence", "decompositional_interdependence", "pairwise_interdependence"]


def decompositional_interdependence(
    lstm: nn.Module | Iterable[nn.Module],
    inputs: Float[Tensor, "batch time inputs"],
    left: Bool[Tensor, "*pairs batch time"],
    right: Bool[Tensor, "*pairs batch time"],
    at: int | Int[Tensor, "*_"] | None = None,
    *,
    state: State | None = None,
    mask: Bool[Tensor, "batch time"] | Int[Tensor, "batch time"] | None = None,
    decoder: nn.Linear | None = None,
    variant: Variant = "published",
) -> Float[Tensor, "*pairs batch"]:
    """Compute DI_t(A, B) = ‖h_{A∪B} − (h_A + h_B)‖₂ / ‖h_{A∪B}‖₂, which is 0 if two sets of words add up.

    Args:
        lstm: see :func:`contextual_decomposition`, also for the other arguments.
        inputs: word vectors.
        left: the words of A, (batch, time), or (pairs, batch, time) for several pairs of sets.
        right: the words of B.
        at: the step t at which the contributions are compared, one for all, (batch,) or (pairs, batch). The default is
            the last word of either set, where their representations are least degraded. Before the later set, the
            value is 0, because only one set contributes.
        state: the state before the first word.
        mask: whether each step holds a word.
        decoder: compare logits without the bias, v = W h, instead of hidden states.
        variant: which products are relevant.

    Returns:
        Tensor of shape (batch,) or (pairs, batch), at least 0; NaN if A ∪ B contributes nothing.

    Raises:
        ValueError: if the sets overlap, are empty, have different shapes or contain padding; if ``at`` is outside the
            sentence; as in :func:`contextual_decomposition`.

    Reference: Saphra & Lopez 2020, equation 2.

    Example:
        >>> words = torch.eye(4, dtype=torch.bool)[:, None]  # one word in each set, one sentence
        >>> di = decompositional_interdependence(nn.LSTM(3, 4), torch.randn(1, 4, 3), words[:2], words[2:])
        >>> di.shape, bool((di > 0).all())
        (torch.Size([2, 1]), True)
    """
    if decoder is not None:
        check_decoder(decoder, lstm_layers(lstm))
    both = left & right
    if both.any():
        raise ValueError(
            f"left and right share words ({int(both.sum())} in all, the first at index "
            f"{tuple(both.nonzero()[0].tolist())}): pass disjoint sets"
        )
    if not bool(left.any(-1).all() & right.any(-1).all()):
        raise ValueError("left and right must contain at least one word in each row, got an empty set")
    steps = real_steps(mask, inputs)
    if ((left | right) & ~steps).any():
        raise ValueError("left or right contains padding: expected words within the mask")
    time = torch.arange(inputs.shape[1], device=inputs.device)
    last = (time * (left | right)).amax(-1)
    read = last if at is None else torch.as_tensor(at, device=inputs.device).expand(last.shape)
    if (outside := (read < 0) | (read >= steps.sum(-1))).any():
        raise ValueError(f"`at` is {int(read[outside][0])}: expected 0 to the sentence's length - 1")
    pairs = left.shape[:-2].numel()
    focus = torch.stack([left, right, left | right]).flatten(0, -3)
    found = contextual_decomposition(lstm, inputs, focus, state, mask=mask, variant=variant)
    hidden = found.relevant[-1].unflatten(0, (3, pairs))
    index = read.reshape(1, pairs, -1, 1, 1).expand(3, -1, -1, 1, hidden.shape[-1])
    h_a, h_b, h_ab = hidden.gather(3, index).squeeze(3)
    difference, whole = h_ab - (h_a + h_b), h_ab
    if decoder is not None:
        difference, whole = (F.linear(v, decoder.weight.detach()) for v in (difference, whole))
    return relative_norm(difference, whole).view(last.shape)


def relative_norm(
    difference: Float[Tensor, "*shape dims"], whole: Float[Tensor, "*shape dims"]
) -> Float[Tensor, "*shape"]:
    """Compute ‖difference‖₂ / ‖whole‖₂."""
    ratio: Tensor = torch.linalg.vector_norm(difference, dim=-1) / torch.linalg.vector_norm(whole, dim=-1)
    return ratio


@dataclass(frozen=True)
class PairwiseInterdependence:
    """Interdependence of all pairs of words up to a distance.

    Entry [b, l, d - 1] is the interdependence of words l and l + d of sentence b, NaN if there is no word l + d.

    Attributes:
        hidden: (batch, time, max_distance), for the last layer's hidden states.
        logits: the same for the decoder's logits without bias; None without a decoder.
    """

    hidden: Float[Tensor, "batch time distance"]
    logits: Float[Tensor, "batch time distance"] | None


@torch.no_grad()
def pairwise_interdependence(
    lstm: nn.Module | Iterable[nn.Module],
    inputs: Float[Tensor, "batch time inputs"],
    max_distance: int,
    *,
    mask: Bool[Tensor, "batch time"] | Int[Tensor, "batch time"] | None = None,
    state: State | None = None,
    decoder: nn.Linear | None = None,
    variant: Variant = "published",
    max_rows: int = 4096,
) -> PairwiseInterdependence:
    """Compute DI of all pairs of words at most ``max_distance`` apart, at the later word, as equation 2 defines it.

    The values are those of :func:`decompositional_interdependence` for each pair, but what pairs have in common is
    computed once: the gates of the whole sentence do not depend on the words in focus; the decomposition with word l
    in focus, followed up to word r - 1, serves both {l} and {l, r}; a single word's own step serves all its pairs. The
    remaining work is ``max_distance`` steps, each of them one batch of all words of all sentences. In the variant
    ``released``, the part of word l alone lacks its bias product, unlike its part before a word r, so l is followed
    twice.

    In float32, values are precise to about 1e-6 for hidden states near 1, and to 3e-4 in saturated LSTMs of 200 units;
    for very small interdependence, use float64.

    Args:
        lstm: see :func:`~lmdyn.analysis.interdependence.lstm_layers.lstm_layers`.
        inputs: word vectors.
        max_distance: maximum distance r - l of the words of a pair, at least 1.
        mask: whether each step holds a word; padding is on the right.
        state: the state before the first word; zeros by default.
        decoder: if given, its logits without bias are also compared.
        variant: which products are relevant.
        max_rows: number of words l that are followed at once. Memory grows with it: about 130 · hidden bytes per row
            in float32, in addition to about 110 · hidden · layers bytes for each word of the batch.

    Raises:
        ValueError: as in :func:`~lmdyn.analysis.contextual_decomposition`.

    Reference: Saphra & Lopez 2020, equation 2 and section 3.

    Example:
        >>> di = pairwise_interdependence(nn.LSTM(3, 4), torch.randn(2, 6, 3), max_distance=3)
        >>> di.hidden.shape, int(di.hidden.isnan().sum())  # words 3, 4 and 5 have fewer partners
        (torch.Size([2, 6, 3]), 12)
    """
    if decoder is not None:
        check_decoder(decoder, lstm_layers(lstm))
    steps = real_steps(mask, inputs)
    batch, time = steps.shape
    known, _ = gates_of(lstm, inputs, state, variant)
    entering = F.linear(inputs, known[0].w_in).flatten(0, 1)
    root = None if decoder is None else _root(decoder.weight.detach())
    # the lengths determine which rows continue: on the CPU, to avoid synchronizing with the device
    to_end = (steps.sum(1).cpu()[:, None] - torch.arange(time)).flatten()  # remaining words, including itself
    shape = (batch * time, max_distance)
    hidden = inputs.new_full(shape, torch.nan)
    logits = None if root is None else inputs.new_full(shape, torch.nan)
    every = torch.arange(batch * time, device=inputs.device).split(max_rows)

    def begun(bias_product: bool) -> States:
        """Return the states after each word, with only this word in focus."""
        pieces = [advance(known, None, None, at, entering[at], variant, bias_product) for at in every]
        layers = zip(*pieces, strict=True)
        return [(torch.cat([h for h, _ in layer]), torch.cat([c for _, c in layer])) for layer in layers]

    last_bias = variant != "released"  # whether the last word in focus has its bias product
    first = begun(True)
    single = first if last_bias else begun(False)
    alone = single[-1][0]
    for rows in (to_end > 1).nonzero().squeeze(1).split(max_rows):
        begin = rows.to(inputs.device)
        # word l on its way to word r, which will also be in focus; and l alone, which differs in `released` only
        states = [(h[begin], c[begin]) for h, c in first]
        own = states if last_bias else [(h[begin], c[begin]) for h, c in single]
        for distance in range(1, max_distance + 1):
            inside = (to_end[rows] > distance).nonzero().squeeze(1)
            if not len(inside):
                break
            rows, kept = rows[inside], inside.to(inputs.device)
            here = rows.to(inputs.device)
            at = here + distance
            states = [(h[kept], c[kept]) for h, c in states]
            again = recurrent(known, states)
            both = advance(known, states, again, at, entering[at], variant, last_bias)[-1][0]
            states = advance(known, states, again, at, None, variant)
            if last_bias:
                own = states
            else:
                own = [(h[kept], c[kept]) for h, c in own]
                own = advance(known, own, recurrent(known, own), at, None, variant)
            difference = both - (own[-1][0] + alone[at])
            hidden[here, distance - 1] = relative_norm(difference, both)
            if logits is not None and root is not None:
                logits[here, distance - 1] = relative_norm(difference @ root, both @ root)
    whole = (batch, time, max_distance)
    return PairwiseInterdependence(hidden.view(whole), None if logits is None else logits.view(whole))


def _root(weight: Float[Tensor, "classes hidden"]) -> Float[Tensor, "hidden _"]:
    """Return R with ‖v R‖ = ‖W v‖ for all v; R is small if there are more classes than dimensions."""
    if len(weight) <= weight.shape[1]:
        return weight.T
    root: Tensor = torch.linalg.qr(weight, mode="r").R
    return root.T

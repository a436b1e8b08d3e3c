"""What each tower of a frozen model predicts by itself, from text: what ``TowerPreference`` compares."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import IGNORED, Forward, device_of
from lmdyn.analysis.inspection.predictions import activations_at
from lmdyn.analysis.preference.tower_predictions import Predictions, TowerPredictions
from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, TowerHead, train_tower_heads
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.callbacks.observing.probe import ProbeSet, to_device, token_vectors

__all__ = ["TowerReader"]


class TowerReader:
    """Reads text with a module, trains an output layer for each tower, and averages what these predict.

    Args:
        sites: the towers' encodings: name to module path.
        forward: dotted path to ``(module, batch) -> output``, or None.
        mask_id: of a masked language model: only positions that read this token count; None: all labelled ones.
        vocab_size: number of token types.
        seed: rows of text are put into two halves by it.
    """

    def __init__(
        self,
        sites: Mapping[str, str],
        forward: Forward | None,
        mask_id: int | None,
        vocab_size: int,
        seed: int,
    ) -> None:
        self.sites, self.forward, self.mask_id = sites, forward, mask_id
        self.vocab_size, self.seed = vocab_size, seed

    def predictions(
        self, module: nn.Module, train: ProbeSet, test: ProbeSet, training: HeadTraining, *, printed: bool
    ) -> Predictions | None:
        """Means of the probabilities of each tower's output layer on ``test``, after training on ``train``.

        Every rank enters. None where encodings, or the output layers trained on them, are not finite.

        Args:
            module: in eval mode; frozen.
            train: what the output layers are trained on; its batches come again when they end.
            test: what they are averaged over.
            training: how they are trained.
            printed: also average over all positions, which the variant ``printed`` needs.

        Raises:
            ValueError: nothing to train on.
        """
        heads, losses = train_tower_heads(self._updates(module, train), self.vocab_size, training)
        if not bool(losses.isfinite().all()):
            return None
        sums = TowerPredictions(self.vocab_size, len(self.sites))
        for encoded, rows in self._encoded(module, test):
            half = (splitmix64(rows + (self.seed << 32)) >> 17) & 1  # a row of text is in one half as a whole
            _add(sums, heads, encoded, half, printed=printed)
        return sums.reduce()

    def _updates(self, module: nn.Module, train: ProbeSet) -> Iterator[Encoded]:
        """This rank's share of the batches to train on."""
        some = True
        while some:
            some = False
            for encoded, _ in self._encoded(module, train):
                some = True
                yield _flat(encoded)

    @torch.no_grad()
    def _encoded(self, module: nn.Module, part: ProbeSet) -> Iterator[tuple[Encoded, Int[Tensor, "rows"]]]:
        """Encodings (rows, positions, d) and labels (rows, positions) of this rank's batches, and the rows' numbers."""
        device = device_of(module)
        rank, world_size = rank_and_world_size()
        for number, batch in enumerate(part.batches(rank, world_size)):
            batch = to_device(batch, device)
            labels = batch["labels"]
            if self.mask_id is not None:  # what the model reads it could copy
                labels = labels.masked_fill(batch["input_ids"] != self.mask_id, IGNORED)
            found = activations_at(module, batch, self.sites, self.forward, whole=number == 0)
            encodings = {site: token_vectors(site, x, labels != IGNORED) for site, x in found.items()}
            positions = batch.get("masked_positions")
            if positions is not None:
                at = positions.clamp(min=0)
                labels = labels.gather(1, at).masked_fill(positions < 0, IGNORED)
                encodings = {
                    site: x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
                    for site, x in encodings.items()
                }
            rows = batch.get("example")
            if rows is None:
                rows = part.rows(number, len(labels), rank, world_size, streams="continues" in batch)
            yield Encoded(encodings, labels), rows.to(device)


def _add(
    sums: TowerPredictions, heads: Mapping[str, TowerHead], rows: Encoded, halves: Tensor, *, printed: bool
) -> None:
    """Add the probabilities of a batch."""
    encoded = _flat(rows)
    half = halves[:, None].expand(rows.labels.shape).flatten()
    log_p = [
        head.target_log_probabilities(encoded.encodings[name], encoded.labels) for name, head in heads.items()
    ]
    sums.update(torch.stack(log_p), encoded.labels, half)
    if printed:
        over_all = [
            head.probability_sums(encoded.encodings[name], encoded.labels) for name, head in heads.items()
        ]
        sums.update_all(torch.stack(over_all), (encoded.labels >= 0).sum())


def _flat(rows: Encoded) -> Encoded:
    return Encoded({name: x.flatten(0, 1) for name, x in rows.encodings.items()}, rows.labels.flatten())

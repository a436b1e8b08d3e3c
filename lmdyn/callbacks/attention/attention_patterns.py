"""Attention of a transformer's heads during training: mean maps, their scores, and an animation."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.attention.attention_scores import AttentionPatternSums, pattern_sums
from lmdyn.analysis.inspection.batches import tokens_of
from lmdyn.analysis.inspection.forward import Batch
from lmdyn.analysis.inspection.transformer import attention_sites
from lmdyn.callbacks.attention.attention_figures import map_figures
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.run import warn
from lmdyn.callbacks.observing.streaming_observer import Sites, StreamingObserver, Watched
from lmdyn.callbacks.observing.sums import Row, Sums
from lmdyn.runs.schema import Quantity

__all__ = ["AttentionPatterns"]

_SPECIAL = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
_score = partial(Quantity, low=0.0, high=1.0, tags=("<site>/head=<head>",), panel="heads")


class AttentionPatterns(StreamingObserver):
    """Mean attention map of each head, and its entropy, diagonal, vertical and block scores.

    The scores are means over all tokens of the probe set, as ``attention_scores`` defines them; special tokens are
    those that begin or end a sentence or a text, segments are ``token_type_ids``. There is no vertical score if the
    tokenizer has no such tokens (with a warning), and no block score if no sequence has two segments. The probe set is
    read unchanged: the validation set of a masked language model contains its masks. Scores of a diverged model, whose
    attention is NaN, are NaN, with a warning; its maps have no rows.

    In addition to the scores, the records contain rows ``map``: the mean weight of a ``query`` position on a ``key``
    position, both from 0, over all sequences that have both.

    Args:
        attention_sites: path of an attention module by display name; ``auto`` finds those that return weights; None
            uses those of all layers, found ones if they have other names than in transformers. A layer that runs
            repeatedly (ALBERT's) gives the sites ``layer@0``, ``layer@1``, …
        size: positions of the maps, from the start of the sequences.
        max_tokens: approximate number of tokens to observe; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for sites that are not modules, a size below 1, or a module without recognised attention.
        RuntimeError: in an observation, for a module that returns no attention weights.

    Reference: Kovaleva et al. 2019; Chiang et al. 2020, figure 4.
    """

    attention_sites: Sites = None
    size: Annotated[int, From(1)] = 32
    max_tokens: Annotated[int, From(1)] | None = 20_000

    uses_labels = False
    sharded = True
    watches = (Watched("attention_sites", attention=True),)
    columns = {"head": int, "query": int, "key": int}
    # for loggers: all maps would not fit into memory
    figure_rows = staticmethod(
        lambda steps: (pc.field("quantity") != "map") | (pc.field("step") == steps[-1])
    )
    recorded = (
        _score("entropy", "Mean entropy of a query's attention.", "nats", high=None, short="entropy of attention"),
        _score("diagonal", "Mean weight of a query on the previous and the next token.",
               short="weight on previous and\nfollowing token"),
        _score("itself", "Mean weight of a query on its own position.", short="weight on the token itself"),
        _score("vertical", "Mean weight of a query on special tokens.", short="weight on special tokens"),
        _score("block", "Mean weight on the query's segment, minus the segment's share of the tokens.", low=-1.0,
               short="weight within the segment,\nless its share of tokens"),
        Quantity("map", "Mean weight of a query position on a key position.", low=0.0, high=1.0, tags=()),
    )  # fmt: skip

    def prepare(self) -> None:
        """Determine the special tokens."""
        tokenizer = self.run.tokenizer
        ids = () if tokenizer is None else (getattr(tokenizer, name) for name in _SPECIAL)
        self.special = torch.tensor(sorted({i for i in ids if i is not None}), dtype=torch.int64)
        if not len(self.special):
            warn(
                self.name,
                "the run has no tokenizer with cls, sep, bos or eos tokens: lmdyn computes no vertical score",
            )

    def find_sites(self, module: nn.Module, watched: Watched) -> None:
        """Find the attention of all layers, by the names in transformers if the module has them."""
        self.choose_sites(module, attention_sites, attention=True)

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return sums of scores and maps."""
        return {"patterns": AttentionPatternSums}

    def read_weights(self, batch: Batch, path: str, weights: Tensor) -> dict[str, Tensor]:
        """Return the sums of a batch at one site."""
        special: Tensor | None = None
        if len(self.special) and "input_ids" in batch:
            special = torch.isin(batch["input_ids"], self.special.to(batch["input_ids"].device))
        segments = batch.get("token_type_ids")
        return pattern_sums(path, weights, tokens_of(batch), special, segments, size=self.size)

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add the sums of a batch."""
        for site, found in seen.attentions.items():
            sums["patterns", site].add(found)

    def rows(self, sums: Sums) -> Iterator[Row | pd.DataFrame]:
        """Yield the scores of heads and their maps."""
        patterns = {site: total.result() for (site,), total in sums.of("patterns")}
        maps = {site: found.pop("map")[0] for site, found in patterns.items()}
        for site, found in patterns.items():
            for quantity, (values, counts) in found.items():
                for head in (counts > 0).nonzero()[:, 0].tolist():
                    yield {"site": site, "head": head}, {quantity: float(values[head])}
        for site, map_ in maps.items():
            weights = map_.numpy()
            places = np.argwhere(~np.isnan(weights))
            table = pd.DataFrame(places, columns=["head", "query", "key"])
            yield table.assign(quantity="map", site=site, value=weights[tuple(places.T)])

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw scores by layer over steps, and scores and maps of all heads at the last step."""
        return super().figures(observations, settings) | map_figures(observations)

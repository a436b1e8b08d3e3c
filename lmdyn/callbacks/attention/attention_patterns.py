"""Attention of a transformer's heads during training: mean maps, their scores, and an animation."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.attention.attention_scores import AttentionPatternSums
from lmdyn.analysis.inspection.transformer import attention_sites
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.attention.attention_figures import attention_figures, diagonal_animation
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver, given_sites

__all__ = ["AttentionPatterns"]

log = logging.getLogger(__name__)

_SPECIAL = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
_HEAD = ("<site>/head=<head>",)


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
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for sites that are not modules, a size below 1, or a module without recognised attention.
        RuntimeError: in an observation, for a module that returns no attention weights.

    Reference: Kovaleva et al. 2019; Chiang et al. 2020, figure 4.
    """

    uses_labels = False
    recorded = (
        Quantity("entropy", "Mean entropy of a query's attention.", "nats", low=0.0, tags=_HEAD),
        Quantity("diagonal", "Mean weight on the previous and the following token.", low=0.0, high=1.0, tags=_HEAD),
        Quantity("itself", "Mean weight on the token itself.", low=0.0, high=1.0, tags=_HEAD),
        Quantity("vertical", "Mean weight on special tokens.", low=0.0, high=1.0, tags=_HEAD),
        Quantity(
            "block", "Mean weight within the segment, less its share of the tokens.", low=-1.0, high=1.0, tags=_HEAD
        ),
        Quantity("map", "Mean weight of a query position on a key position.", low=0.0, high=1.0, tags=()),
    )  # fmt: skip

    sharded = True

    def __init__(
        self,
        *,
        attention_sites: Mapping[str, str] | str | None = None,
        size: int = 32,
        max_tokens: int | None = 20_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        if size < 1:
            raise ValueError(f"size is {size}: expected a number of positions from 1")
        self.attention_sites = given_sites(attention_sites, {})
        self.size = size
        self._special: tuple[int, ...] = ()

    def prepare(self) -> None:
        """Determine the special tokens."""
        tokenizer = self.run.tokenizer
        ids = () if tokenizer is None else (getattr(tokenizer, name) for name in _SPECIAL)
        self._special = tuple(sorted({i for i in ids if i is not None}))
        if not self._special:
            log.warning(
                "%s: the run's tokenizer has no token that begins or ends a text: no vertical score is computed",
                self.name,
            )

    def check_module(self, module: nn.Module) -> None:
        """Find the attention of all layers; raise an error for sites that are not modules."""
        default: dict[str, str] | None = None
        if self.hparams["attention_sites"] is None:
            with suppress(ValueError):  # otherwise they are found
                default = attention_sites(module)
        self.attention_sites = self.choose_sites(module, default, attention=True)

    def accumulator(self, module: nn.Module, step: int) -> "_Sums":
        """Return an accumulator of scores and maps."""
        # during training, only the newest maps are drawn: all of them would not fit into memory
        self.figure_rows = (pc.field("quantity") != "map") | (pc.field("step") == step)
        return _Sums(self, step)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except the maps."""
        return observations["quantity"] != "map"

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw scores by layer over steps, and scores and maps of all heads at the last step."""
        return attention_figures(observations)

    @staticmethod
    def animations(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Sequence[Figure]]:
        """Draw a picture per step of the heads that become diagonal, by name; the report animates them.

        The pictures are states of one figure: save each before accessing the next one.
        """
        frames = diagonal_animation(observations)
        return {"diagonal_heads": frames} if len(frames) > 1 else {}


class _Sums:
    def __init__(self, observer: AttentionPatterns, step: int) -> None:
        self._name, self._step = observer.name, step
        self._sites = tuple(observer.attention_sites)
        self._special = torch.tensor(observer._special)
        self._sums = AttentionPatternSums(observer.size)

    def update(self, seen: ObservedBatch) -> None:
        special: Tensor | None = None
        if len(self._special) and "input_ids" in seen.batch:
            special = torch.isin(seen.batch["input_ids"], self._special.to(seen.batch["input_ids"].device))
        # other observers of the same pass may use other sites
        mine = {k: v for k, v in seen.attentions.items() if k.split("@")[0] in self._sites}
        self._sums.update(mine, seen.tokens, special, seen.batch.get("token_type_ids"))

    def table(self) -> pd.DataFrame:
        self._sums.reduce()
        scores, maps, broken = [], [], []
        for site, patterns in self._sums.result().items():
            for quantity, values in patterns.scores.items():
                there = (patterns.counts[quantity] > 0).nonzero()[:, 0].tolist()
                scores += [(quantity, site, head, float(values[head])) for head in there]
                if bool(values[there].isnan().any()) and site not in broken:
                    broken.append(site)
            weights = patterns.map.numpy()
            finite = np.argwhere(~np.isnan(weights))
            if len(finite):
                maps.append(
                    pd.DataFrame(finite, columns=["head", "query", "key"]).assign(
                        quantity="map", site=site, value=weights[tuple(finite.T)]
                    )
                )
        if broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: attention is not finite at step %d in %s: the model has diverged",
                self._name, self._step, broken,
            )  # fmt: skip
        table = pd.concat(
            [pd.DataFrame(scores, columns=["quantity", "site", "head", "value"]), *maps], ignore_index=True
        )
        groups = ["head", "query", "key"]
        table = table.reindex(columns=["quantity", "site", *groups, "value"])
        return table.astype(dict.fromkeys(groups, "Int64"))

"""The table of an observation of handwriting."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from lmdyn.analysis.dynamics.window_regressions import WindowMap

__all__ = ["PUBLISHED_WINDOW", "HandwritingRows"]

PUBLISHED_WINDOW = (7, 28)
"""(t₀, ΔT) of the lowest NMSE of ALBERT-large: Inoue et al. 2022, figure 3C."""


class HandwritingRows:
    """Rows of an observation."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, quantity: str, value: float, **groups: Any) -> None:
        """Add a single number."""
        self._rows.append({"quantity": quantity, "value": float(value), **groups})

    def add_map(
        self,
        found: WindowMap | None,
        best: tuple[int, int] | None,
        starts: range,
        lengths: range,
        times: int,
        ridge: float,
    ) -> None:
        """Add the map of windows, NaN if there is none, and the numbers of the best and of the published one.

        Args:
            found: the regressions.
            best: (t₀, ΔT) of the best window.
            starts: values of t₀.
            lengths: values of ΔT.
            times: number of times at which states were read.
            ridge: requested ridge.
        """
        nan = float("nan")
        nmse = [[nan] * len(lengths)] * len(starts) if found is None else found.nmse.tolist()
        for start, values in zip(starts, nmse, strict=True):
            for length, value in zip(lengths, values, strict=True):
                if start + length <= times:
                    self.add("nmse", value, start=start, length=length)
        start, length = PUBLISHED_WINDOW
        if start in starts and length in lengths and start + length <= times:
            self.add("published_window_nmse", nmse[start][length - 1])
        numbers = [nan] * 4
        if found is not None and best is not None:
            at = starts.index(best[0]), lengths.index(best[1])
            numbers = [float(found.nmse[at]), *best, float(found.condition[at])]
        for quantity, value in zip(("nmse", "start", "length", "condition"), numbers, strict=True):
            self.add(f"best_{quantity}", value)
        self.add("raised_ridge", nan if found is None else int((found.ridge > ridge).sum()))

    def add_paths(
        self,
        start: int,
        targets: Tensor,
        letters: Sequence[str],
        best: Sequence[tuple[float, int, int, Tensor]],
    ) -> None:
        """Add the target letters, and the paths of the sentences that are written best.

        Args:
            start: t₀ of the window.
            targets: (2, ΔT, 2) velocities.
            letters: the letters.
            best: for each sentence the NMSE, its number, its letter's number, and its (ΔT, 2) path.
        """
        for i, letter in enumerate(letters):
            here = {"start": start, "length": targets.shape[1], "letter": letter}
            self._add_path("target_path", targets[i].cumsum(0).cpu(), **here)
            for _, number, of, path in best:
                if of == i:
                    self._add_path("path", path, sentence=number, **here)

    def _add_path(self, quantity: str, points: Tensor, **groups: Any) -> None:
        """Add a path from (0, 0), which precedes the first point."""
        for k, point in enumerate([[0.0, 0.0], *points.tolist()]):
            for axis, value in zip("xy", point, strict=True):
                self.add(quantity, value, **groups, k=k, axis=axis)

    def table(self) -> pd.DataFrame:
        """Return all rows."""
        whole = ("start", "length", "sentence", "k")
        columns = ["quantity", "site", "letter", "axis", *whole, "value"]
        table = pd.DataFrame(self._rows).reindex(columns=columns).assign(site="")
        table = table.astype({**dict.fromkeys(whole, "Int64"), "value": "float64"})
        for name in ("letter", "axis"):
            table[name] = table[name].astype(object).where(table[name].notna(), None)
        return table

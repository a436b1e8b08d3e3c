"""Curves of runs: one for each quantity, site and group that an observer recorded, over steps."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.dataset as ds

from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.schema import from_arrow, group_columns

__all__ = ["curves_of"]

_NO_CURVES = ("learning_rate",)


def curves_of(run: Path, select: Sequence[str] = ()) -> dict[str, "pd.Series[float]"]:
    """Return the curves of a run by name: values by step, without step 0 and without values that are not finite.

    The name is that of the logger's tag, ``<observer>/<quantity>/<site>/<groups>``.

    Args:
        run: run folder with ``observations/``.
        select: patterns of names to keep, as for a shell (``sparsity/*``); all if there are none.

    Raises:
        FileNotFoundError: if the run has no observations.
        ValueError: if a pattern fits none of the curves (the message lists the observers), or if two curves have one
            name.
    """
    folders = sorted(p for p in (run / "observations").glob("*") if any(p.glob("*.parquet")))
    if not folders:
        raise FileNotFoundError(f"no observations in {run}: expected the folder of a run with observations/")
    wanted = [f for f in folders if not select or any(_may_fit(f.name, pattern) for pattern in select)]
    found: dict[str, pd.Series[float]] = {}
    for name, curve in (pair for folder in wanted for pair in _curves(folder, select)):
        if name in found:
            raise ValueError(
                f"two curves of {run} have the name {name!r}: rename a site or a group of the observer"
            )
        found[name] = curve
    for pattern in select:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ValueError(
                f"no curve of {run} fits {pattern!r}: expected names such as OBSERVER/QUANTITY/SITE, of the observers "
                f"{', '.join(f.name for f in folders)}"
            )
    return found


def _may_fit(observer: str, pattern: str) -> bool:
    head = pattern.split("/", 1)[0]
    return fnmatchcase(observer, head)


def _curves(folder: Path, select: Sequence[str]) -> Iterator[tuple[str, "pd.Series[float]"]]:
    tables = [
        from_arrow(ds.dataset(path).to_table()).to_pandas() for path in sorted(folder.glob("*.parquet"))
    ]
    rows = pd.concat(tables, ignore_index=True)
    rows = rows[(rows["step"] > 0) & ~rows["quantity"].isin(_NO_CURVES) & np.isfinite(rows["value"])]
    names = ["quantity", "site", *group_columns(rows)]
    for _, curve in rows.groupby(names, dropna=False, observed=True, sort=False):
        (name,) = scalar_tags(folder.name, curve.iloc[:1])
        if not select or any(fnmatchcase(name, pattern) for pattern in select):
            yield name, curve.set_index("step")["value"].astype(float).sort_index()

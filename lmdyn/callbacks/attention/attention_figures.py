"""Mean attention maps of all heads in one figure."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["map_figures"]

_SCALE = LogNorm(1e-3, 1, clip=True)  # for all maps: the same at each step


@fig.in_style
def map_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the finite maps at the last step, a line for each site and a column for each head; nothing without maps."""
    last = last_step(observations[np.isfinite(observations["value"])])
    rows = select(last, quantity="map")
    if not len(rows):
        return {}
    sites = list(dict.fromkeys(rows["site"]))
    heads, size = (int(rows[c].max()) + 1 for c in ("head", "query"))
    step = size + max(1, size // 10)  # white between two maps
    whole = np.full((len(sites) * step, heads * step), np.nan)
    places: Any = rows.groupby(["site", "head"], sort=False, observed=True)
    for (site, head), one in places:
        square = wide(one, "key", "query").to_numpy(dtype=float)
        whole[sites.index(site) * step :, head * step :][: len(square), : square.shape[1]] = square
    figure, ax = fig.new_figure(heads + 1.8, len(sites) + 1.0)
    image = fig.show_image(ax, whole[: size - step, : size - step], norm=_SCALE, cmap="magma")
    names = [fig.site_label(site) for site in sites], [f"head {head}" for head in range(heads)]
    for axis, labels in zip((ax.yaxis, ax.xaxis), names, strict=True):
        axis.set_ticks(np.arange(len(labels)) * step + (size - 1) / 2, labels, fontsize=8)
        axis.set_tick_params(length=0)
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    figure.colorbar(image, ax=ax, label="mean attention weight", extend="min", shrink=0.9, aspect=30)
    figure.suptitle(
        f"mean attention at step {int(last['step'].iloc[0]):,}: query positions 0–{size - 1} "
        "downwards, key positions to the right",
        wrap=True,
    )  # fmt: skip
    return {"maps": figure}

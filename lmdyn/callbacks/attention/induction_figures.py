"""The figure of Olsson et al. 2022 of induction heads: scores of all heads over training."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select

__all__ = ["induction_figures"]

_SCORES = ("prefix_matching", "previous_token", "duplicate_token", "copying")
_BEST = 3  # heads with a colour of their own


@fig.in_style
def induction_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw ``heads_over_steps``: a panel for each score with finite observations, a line for each head.

    The heads with the highest last scores have colours.
    """
    finite = observations[np.isfinite(observations["value"])]
    scores = [name for name in _SCORES if finite["quantity"].eq(name).any()]
    if not scores:
        return {}
    panels = fig.new_panels(len(scores), 4.4, 3.0, most=2, margin=(0.4, 0))
    uniform = select(finite, quantity="uniform_attention")["value"]
    for ax, score in zip(panels, scores, strict=True):
        rows = select(finite, quantity=score)
        rows = rows.assign(
            name=rows["site"].map(fig.site_label) + ", head " + rows["head"].astype(int).astype(str)
        )
        best = list(last_step(rows).set_index("name")["value"].nlargest(_BEST).index)
        grey = {"color": "0.75", "lw": 0.8, "label": "_nolegend_"}
        others = {name: grey for name in rows["name"].unique() if name not in best}
        fig.draw_lines(ax, rows, "name", others)
        fig.draw_lines(ax, rows, "name", fig.line_styles(best), lw=1.6)
        if score == "copying":
            fig.zero_line(ax)
            ax.set_ylim(-1.05, 1.05)
        else:
            fig.from_zero(ax, 1.0)
            if len(uniform):
                ax.axhline(uniform.iloc[-1], color="0.3", ls=":", lw=1.2, label="uniform attention")
        ax.set_title(score.replace("_", " "))
        fig.set_step_axis(ax, finite["step"])
        ax.legend(loc="best", fontsize=7.5)
    return {"heads_over_steps": panels.figure}

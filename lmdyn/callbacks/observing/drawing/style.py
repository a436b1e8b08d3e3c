"""Style of all figures: colours, text sizes, grid, frames."""

from typing import Any

import matplotlib as mpl
from cycler import cycler

COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "black": "#333333",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "brown": "#8B5E34",
}
"""Colours of lines, in their order, distinguishable also without red or green vision.

They are those of Okabe & Ito 2008, with brown instead of their yellow, which is too pale for a line on white.
"""

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "0.4",
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": cycler(color=list(COLOURS.values())),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "figure.titlesize": 10.5,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": "0.92",
    "grid.linewidth": 0.7,
    "image.interpolation": "nearest",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.title_fontsize": 8.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "xtick.color": "0.4",
    "xtick.labelcolor": "0.15",
    "xtick.labelsize": 8.5,
    "ytick.color": "0.4",
    "ytick.labelcolor": "0.15",
    "ytick.labelsize": 8.5,
}
"""Settings of matplotlib while a figure is created and drawn; the user's own are not changed."""

in_style = mpl.rc_context(STYLE)
"""Decorator for functions that create figures: what they draw has the style :data:`STYLE`."""

"""Numbers and verdicts of claims as text: the same in the terminal, on pages and in tables."""

import math
import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from lmdyn.claims.claim import Published
from lmdyn.claims.rows import Layer, Rows

if TYPE_CHECKING:
    from lmdyn.claims.judge import ClaimJudgement
    from lmdyn.claims.summary import Summary

__all__ = ["HOW", "number_words", "published_words", "slug", "summary_words", "verdict_words"]

HOW = (
    "Each claim states a region for one number per run. The claim holds if the interval of the mean, for other seeds "
    "and texts, is inside the region. The claim fails if the interval is outside the region, and is undecided "
    "otherwise. Smaller than required: the interval is outside, between the region and the number without an effect "
    "(0 for a difference or a correlation). Not within N tokens: the claim is about N training tokens, the runs are "
    "shorter (or their length is unknown), and they do not show that it holds. With three or four seeds, the interval "
    "of each seed must also be inside or outside. With fewer seeds, a claim is undecided. (Of this text): no error "
    "over texts is known. After Holm: the verdict is corrected for all claims tested on the same runs. Floor: the "
    "number of a model or data without the claimed property; the verdict does not use the floor. "
    "With another explanation: something else gives the number its direction. Void: a condition is "
    "not met, so the number is meaningless. Exploratory: the claim was stated or changed after someone had inspected "
    "the runs. Primary: the claim that answers its question, by the publication's own measure or as the first one."
)


FLOOR_TOO = "holds as its floor does"
"""What holds, and whose floor lies in the region too."""

EXPLAINED = "holds with another explanation"
"""What holds, in a direction that something else explains: ``Claim.forced``."""


def summary_words(summary: "Summary | None") -> str:
    """Return mean and interval over seeds, rounded to two digits of the interval's half-width.

    Example:
        >>> from lmdyn.claims.numbers import Estimate
        >>> from lmdyn.claims.summary import summarize
        >>> from lmdyn.runs.observed_run import SeedPair
        >>> summary_words(summarize({SeedPair(s, s): Estimate(v) for s, v in ((1, 0.2), (2, 0.3), (3, 0.25))}))
        '0.25 [0.13, 0.37]'
    """
    if summary is None:
        return "–"
    low, high = summary.interval or summary.range
    half = (high - low) / 2
    digits = min(max(1 - math.floor(math.log10(half)), 0), 6) if math.isfinite(half) and half > 0 else 3
    number = (
        f"{summary.range[0]:.{digits}f} … {summary.range[1]:.{digits}f}"
        if summary.censored
        else f"{summary.mean:.{digits}f}"
    )
    return number if summary.interval is None else f"{number} [{low:.{digits}f}, {high:.{digits}f}]"


def number_words(number: Any) -> str:
    """Describe a number by its classes and what they read.

    Example:
        >>> from lmdyn.claims import At, Change
        >>> rows = Rows("Sparsity", "rho_gradient", "h2", where=(("role", "target"),))
        >>> number_words(Change(rows, since=0))
        'Change(Sparsity/rho_gradient at h2 (role=target), 0)'
    """
    if isinstance(number, Rows):
        pairs = [f"{k}={v}" for k, v in (*number.where, *number.settings, *number.run) if v not in (None, "")]
        site = f"the {number.site.which} layer" if isinstance(number.site, Layer) else number.site
        words = f"{number.observer}/{number.quantity}" + (f" at {site}" if site else "")
        words += f" ({', '.join(pairs)})" if pairs else ""
        return words if type(number) is Rows else f"{type(number).__name__}({words})"
    if isinstance(number, tuple):
        return ", ".join(map(number_words, number))
    if is_dataclass(number) and not isinstance(number, type):
        given = [getattr(number, f.name) for f in fields(number) if getattr(number, f.name) != f.default]
        return f"{type(number).__name__}({', '.join(map(number_words, given))})"
    return str(number)


def published_words(published: Published | None) -> str:
    """Format the number printed in a publication, with its confidence interval for its own n if available.

    Example:
        >>> published_words(Published(-0.4, n=28, kind="correlation"))
        '-0.4 [-0.67, -0.032], of n = 28'
    """
    if published is None:
        return ""
    interval, n, says = published.interval(), published.n, published.says
    ends = f" [{interval[0]:.2g}, {interval[1]:.2g}]" if interval else ""
    return f"{published.value:g}{ends}{f', of n = {n:,}' if n else ''}{f' ({says})' if says else ''}"


def verdict_words(row: "ClaimJudgement") -> str:
    """Return the verdict with its limits: opposite, for this text only, a floor in the region, exploratory."""
    words: str = FLOOR_TOO if row.floor_too else row.verdict
    if words == "holds" and row.claim.forced:
        words = EXPLAINED
    if row.verdict == "not within N tokens":
        words = f"not within {row.claim.within:,.0f} tokens"
    if row.verdict == "fails":
        words += _against(row)
    if row.verdict in ("holds", "smaller than required", "fails") and row.of_this_text:
        words += " (of this text)"
    return f"{words}, exploratory" if row.exploratory and row.parts else words


def _against(row: "ClaimJudgement") -> str:
    """Return whether the first part that fails has the opposite sign, or either sign; nothing if it has no sign."""
    for part, judged in zip(row.claim.parts, row.parts, strict=True):
        null = part.number.null()
        if judged.verdict == "fails" and judged.p_sign is not None and judged.interval and null is not None:
            low, high = judged.interval
            opposite = high < null if null < part.region.low else low > null
            return ": opposite" if opposite else ": not of that size"
    return ""


def slug(text: str) -> str:
    """Return a text as part of a file's name."""
    return re.sub(r"\W+", "_", text).strip("_")

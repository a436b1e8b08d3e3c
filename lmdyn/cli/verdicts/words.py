"""Texts of tables about claims, in words and rounded numbers: the same in the terminal, in Markdown and on the page."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lmdyn.claims.claim import Published, Region
from lmdyn.claims.learning import Agreement, Over
from lmdyn.claims.numbers import (
    At,
    Change,
    Difference,
    Estimate,
    Largest,
    Layer,
    Mean,
    Number,
    Reaches,
    Rows,
    Smallest,
    Tested,
)
from lmdyn.claims.rows import parts_of

if TYPE_CHECKING:
    from lmdyn.analysis.statistics.variance_components import VarianceComponents

__all__ = [
    "components_words",
    "decimals",
    "estimate_words",
    "how_words",
    "interval_words",
    "number_words",
    "published_words",
    "quantity_words",
    "region_words",
    "rounded",
    "what_decides",
]

_HOW = (
    "Each claim is about one number a run, and is true where that number lies in a region that was said before. The "
    "verdict is computed: the {confidence:.0%} interval of the mean inside the region: *holds*; disjoint from it: "
    "*fails*; else *undecided*. With three or four seeds each seed's own interval must lie there too, and below three "
    "a claim is undecided. That interval is of other seeds and other texts together; beside it stand that of other "
    "seeds on this text, and that of these models on other texts, or with other words where the number is one over "
    "words (– where nothing says it: the verdict is then of this text). *After Holm*: corrected for all claims "
    "that were tested in the same group of runs. *Floor*: what a model or data scores that has nothing of what is "
    "claimed, such as an untrained one; it does not enter the verdict, and *holds, and so does its floor* says that "
    "the number does not tell the two apart. *Void*: what it is judged by is meaningless here. *Exploratory*: the "
    "claim was made, or changed, after something of it was measured."
)

_MINUS = "\N{MINUS SIGN}"


def how_words(confidence: float) -> str:
    """Return the paragraph that explains a table of verdicts, with emphasis between asterisks."""
    return _HOW.format(confidence=confidence)


def decimals(low: float, high: float) -> int:
    """Return how many decimals show an interval with two digits of its half-width.

    Example:
        >>> decimals(0.1234, 0.2234), decimals(-30.0, 50.0), decimals(0.5, 0.5)
        (3, 0, 3)
    """
    half = (high - low) / 2
    if not (math.isfinite(half) and half > 0):
        return 3
    return min(max(1 - math.floor(math.log10(half)), 0), 6)


def rounded(value: float, digits: int) -> str:
    """Round a number as in tables, with a true minus sign.

    Example:
        >>> rounded(-0.1234, 2), rounded(float("inf"), 2), rounded(-0.0001, 2)
        ('−0.12', '∞', '0.00')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return f"{_MINUS if value < 0 else ''}∞"
    text = f"{value:.{digits}f}"
    text = text.lstrip("-") if float(text) == 0 else text
    return text.replace("-", _MINUS)


def interval_words(low: float, high: float, digits: int) -> str:
    """Format an interval in brackets; a dash if there is none.

    Example:
        >>> interval_words(-0.5, 0.25, 2), interval_words(float("nan"), 1.0, 2)
        ('[−0.50, 0.25]', '–')
    """
    if math.isnan(low) or math.isnan(high):
        return "–"
    return f"[{rounded(low, digits)}, {rounded(high, digits)}]"


def region_words(region: Region) -> str:
    """Format the region in which a claim is true.

    Example:
        >>> from lmdyn.claims import Above, Within
        >>> region_words(Above(0.05)), region_words(Within(-0.1, 0.1))
        ('≥ 0.05', '−0.1 … 0.1')
    """
    return str(region).replace("-", _MINUS)


def published_words(published: Published | None) -> str:
    """Format the number printed in a publication, with its confidence interval for its own n if available.

    Example:
        >>> published_words(Published(-0.4, n=28, kind="correlation"))
        '−0.4 [−0.67, −0.03], of n = 28'
        >>> published_words(Published(0.3, says="read off figure 3"))
        '0.3 (read off figure 3)'
    """
    if published is None:
        return ""
    words = f"{published.value:g}".replace("-", _MINUS)
    if (interval := published.interval()) is not None:
        words += f" {interval_words(*interval, decimals(*interval))}"
    if published.n is not None:
        words += f", of n = {published.n:,}"
    return words + (f" ({published.says})" if published.says else "")


_AGREEMENT = {
    "signs": "share of cells with equal signs",
    "signs_by_chance": "share of cells with equal signs, by chance",
    "ranks": "rank correlation of cells",
}


def number_words(number: Any, *, brief: bool = False) -> str:
    """Describe a number in words: what is measured at which site, and how it is computed.

    Args:
        number: the number of a run.
        brief: whether to omit site, groups and settings, which then belong to a row: used for axes.

    Example:
        >>> rows = Rows("Sparsity", "rho_gradient", "h2", where=(("role", "target"),))
        >>> number_words(At(rows)), number_words(Change(rows, since=0), brief=True)
        ('rho gradient at h2 (role target), at the last observation', 'change of rho gradient, step 0 to the last')
        >>> number_words(Difference(At(rows), At(rows, "first")))
        'rho gradient at h2 (role target), at the last observation, less that at the first'
    """
    match number:
        case Rows():
            return _rows_words(number, brief)
        case At():
            return f"{_rows_words(number.rows, brief)}, at {_step_words(number.step)}"
        case Change():
            since, until = _step_words(number.since), _step_words(number.until)
            since, until = (words.replace(" observation", "") for words in (since, until))
            return f"change of {_rows_words(number.rows, brief)}, {since} to {until}"
        case Difference():
            return _difference_words(number, brief)
        case Mean() | Largest() | Smallest():
            each = list(dict.fromkeys(number_words(one, brief=brief) for one in number.numbers))
            if len(number.numbers) == 1:
                return each[0]
            what = each[0] if len(each) == 1 else "; ".join(each)
            return f"{type(number).__name__.lower()} of {len(number.numbers)}: {what}"
        case Reaches():
            goal = (
                f"{number.level:g}"
                if number.level is not None
                else f"{number.share_of_last:.0%} of its last value"
            )
            verb = "falls to" if number.falling else "reaches"
            return f"log₁₀ of the updates until {_rows_words(number.rows, brief)} {verb} {goal}"
        case Agreement():
            kind = _AGREEMENT[number.kind]
            if brief:
                return kind
            both = ", and ".join(_rows_words(rows, brief) for rows in (number.rows, number.other))
            return f"{kind}: {both}, at {_step_words(number.step)}"
        case Tested():
            return f"{number.metric.replace('_', ' ')}{'' if brief else _of_run(number.run)}"
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(number).__name__).lower()
    a, b = getattr(number, "a", None), getattr(number, "b", None)
    if (
        isinstance(a, Number) and isinstance(b, Number) and not brief
    ):  # for two numbers, each has its own step
        return f"{name} of {number_words(a)}, to {number_words(b)}"
    rows = dict.fromkeys(_rows_words(part, brief) for part in parts_of(number) if isinstance(part, Rows))
    return name if brief or not rows else f"{name} of {'; '.join(rows)}"


def _difference_words(number: Difference, brief: bool) -> str:
    a, b = number.a, number.b
    if isinstance(a, At) and isinstance(b, At) and a.rows == b.rows:
        return (
            f"{number_words(a, brief=brief)}, less that at {_step_words(b.step).replace(' observation', '')}"
        )
    words = number_words(a, brief=brief), number_words(b, brief=brief)
    return f"difference of {words[0]}" if words[0] == words[1] else f"{words[0]}, less {words[1]}"


def quantity_words(number: Any) -> str:
    """Describe the values of a number's curve.

    Example:
        >>> quantity_words(At(Rows("Sparsity", "chi_gradient", "h2")))
        'chi gradient'
    """
    for part in parts_of(number):
        if isinstance(part, Rows):
            return part.quantity.replace("_", " ")
    return ""


def _rows_words(rows: Rows, brief: bool) -> str:
    words = rows.quantity.replace("_", " ")
    if brief:
        return words
    if isinstance(rows.site, Layer):
        words += f" at the {rows.site.which} hidden layer"
    elif rows.site:
        words += f" at {rows.site}"
    if isinstance(rows, Over):
        words += f" ({'largest' if rows.how == 'max' else 'mean'} over {rows.over}s)"
    groups = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in rows.where if value not in (None, "")
    )
    return f"{words}{f' ({groups})' if groups else ''}{_of_run((*rows.settings, *rows.run))}"


def _of_run(pairs: Sequence[tuple[str, Any]]) -> str:
    told = ", ".join(f"{name.rpartition('.')[2].replace('_', ' ')} {value}" for name, value in pairs)
    return f" [{told}]" if told else ""


def _step_words(step: str | int | float) -> str:
    if isinstance(step, str):
        return f"the {step} observation"
    return f"step {step:,}" if isinstance(step, int) else f"{step:.0%} of training"


def estimate_words(estimate: Estimate, digits: int) -> str:
    """Format one seed's number, or its bounds if it is censored.

    Example:
        >>> estimate_words(Estimate(0.213), 2), estimate_words(Estimate(3.0, low=3.0, high=math.inf), 1)
        ('0.21', '≥ 3.0')
    """
    if not estimate.censored:
        return rounded(estimate.value, digits)
    if math.isinf(estimate.high):
        return f"≥ {rounded(estimate.low, digits)}"
    if math.isinf(estimate.low):
        return f"≤ {rounded(estimate.high, digits)}"
    return f"{rounded(estimate.low, digits)} … {rounded(estimate.high, digits)}"


def components_words(components: "VarianceComponents") -> str:
    """Format the variance shares of a crossed design.

    Example:
        >>> from lmdyn.analysis.statistics.variance_components import VarianceComponents
        >>> components_words(VarianceComponents(0.03, -0.001, 0.01, 0.5))
        'of initialisation 75 %, of the order of data 0 %, of both and the rest 25 % (one run a cell)'
    """
    found = [max(0.0, value) for value in components[:3]]  # an estimate below 0 means that none is visible
    if not (whole := math.fsum(found)):
        return "0"
    first, second, rest = (f"{value / whole:.0%}".replace("%", " %") for value in found)
    return f"of initialisation {first}, of the order of data {second}, of both and the rest {rest} (one run a cell)"


def what_decides(verdicts: Sequence[tuple[str, str]]) -> str:
    """Return a sentence about the verdicts of the variants of one question: whether they agree, or what decides.

    Variants whose names have several parts (``published rule; the tree``) are compared part by part: if the verdict
    follows one part regardless of the others, that part decides.

    Args:
        verdicts: name and verdict of each variant.

    Example:
        >>> what_decides([("cca", "holds"), ("svcca", "fails"), ("pwcca", "holds")])
        'The choice decides: it holds with cca, pwcca; fails with svcca.'
        >>> what_decides([("a, tree", "holds"), ("b, tree", "fails"), ("a, line", "holds"), ("b, line", "fails")])
        'What decides is a or b: it holds with a; fails with b, whatever else varies.'
        >>> what_decides([("a; x", "holds"), ("a; y", "holds"), ("b; x", "fails"), ("c; x", "not measured")])
        'What decides is a or b: it holds with a; fails with b, whatever else varies; not measured with c.'
        >>> what_decides([("cca", "holds"), ("svcca", "undecided")])
        'No variant contradicts another: it holds with cca; undecided with svcca.'
        >>> what_decides([("h1; all, as published", "holds"), ("frequent", "holds"), ("h1; some", "undecided")])
        'No variant contradicts another: it holds with “h1; all, as published”, “frequent”; undecided with “h1; some”.'
        >>> what_decides([("GPT", "holds"), ("GPT, as printed", "holds"), ("BERT", "undecided")])
        'No variant contradicts another: it holds with GPT; undecided with BERT.'
    """
    decided, others = ("holds", "fails", "undecided"), ("void", "not measured")
    measured = [(variant, verdict) for variant, verdict in verdicts if verdict in decided]
    found = set(dict(measured).values())
    rest = "".join(f"; {told}" for told in _by_verdict(verdicts, others))
    if not found & {"holds", "fails"}:
        return f"No variant decides it: {'; '.join(_by_verdict(verdicts, (*decided, *others)))}."
    if len(found) == 1:
        every = "Both" if len(measured) == 2 else f"All {len(measured)}"
        (verdict,) = found
        return f"{every} variants agree: it {verdict}{rest}." if len(measured) > 1 else f"It {verdict}{rest}."
    apart = {"holds", "fails"} <= found  # undecided does not contradict a verdict
    part = _deciding_part(
        [_parts_of(variant) for variant, _ in measured], [verdict for _, verdict in measured]
    )
    if apart and part is not None:
        levels = [(_parts_of(variant)[part], verdict) for variant, verdict in measured]
        lacking = [(dict(enumerate(_parts_of(v))).get(part, v), verdict) for v, verdict in verdicts]
        return (
            f"What decides is {' or '.join(dict.fromkeys(level for level, _ in levels))}: it "
            f"{'; '.join(_by_verdict(levels, decided))}, whatever else varies"
            f"{''.join(f'; {told}' for told in _by_verdict(lacking, others))}."
        )
    agree = "The choice decides" if apart else "No variant contradicts another"
    return f"{agree}: it {'; '.join(_by_verdict(measured, decided))}{rest}."


def _by_verdict(verdicts: Sequence[tuple[str, str]], which: Sequence[str]) -> list[str]:
    """Return ``holds with a, b`` for each verdict that any variant has; variants that share a part, by that part."""
    return [
        f"{verdict} with {', '.join(_told_apart(_condensed(dict.fromkeys(names), verdicts)))}"
        for verdict in which
        if (names := [variant for variant, found in verdicts if found == verdict])
    ]


def _told_apart(names: Sequence[str]) -> list[str]:
    """Join names in a list, with quotation marks if one contains a comma or a semicolon."""
    return [f"“{name}”" for name in names] if any({",", ";"} & {*name} for name in names) else [*names]


def _condensed(names: Iterable[str], verdicts: Sequence[tuple[str, str]]) -> list[str]:
    """Shorten a list of variants: replace all variants of one level by the level."""
    left = list(names)
    everything = {variant: _parts_of(variant) for variant, _ in verdicts}
    for place in range(max(map(len, everything.values()))):
        for level in dict.fromkeys(parts[place] for parts in everything.values() if len(parts) > place):
            of_level = [v for v, parts in everything.items() if len(parts) > place and parts[place] == level]
            if len(of_level) > 1 and set(of_level) <= set(left):
                at = left.index(of_level[0])
                left = [name for name in left if name not in of_level]
                left.insert(at, level)  # after removing the others: a variant may have its level's name
    return left


def _parts_of(variant: str) -> list[str]:
    return [part.strip() for part in variant.split(";" if ";" in variant else ",")]


def _deciding_part(names: Sequence[Sequence[str]], verdicts: Sequence[str]) -> int | None:
    """Return the index of the part of the names that alone determines the verdict; None if there is no single one."""
    width = len(names[0])
    if width < 2 or any(len(parts) != width for parts in names):
        return None
    found: list[int] = []
    for place, levels in enumerate(zip(*names, strict=True)):
        pairs = set(zip(levels, verdicts, strict=True))
        if len(pairs) == len(set(levels)) < len(names):
            found.append(place)
    return found[0] if len(found) == 1 else None  # if two parts vary together, either may decide

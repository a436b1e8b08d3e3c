"""Claims grouped by question, and all verdicts of a study as one table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pandas as pd

from lmdyn.claims.judge import ClaimJudgement, StudyJudgement
from lmdyn.claims.profiles import Profile
from lmdyn.claims.summary import Interval, Verdict
from lmdyn.claims.verdicts.words import EXPLAINED, FLOOR_TOO, number_words, slug

__all__ = ["Judged", "Question", "count", "heading", "measured_elsewhere", "questions_of", "verdict_table"]

VERDICTS = get_args(Verdict)


@dataclass(frozen=True)
class Judged:
    """A profile, and the judged claims of a study in its runs."""

    profile: Profile
    judgement: StudyJudgement


@dataclass(frozen=True)
class Question:
    """Claims that ask one question with several measures or rules; or a single claim.

    Attributes:
        title: the question.
        rows: its claims.
        primary: the one that answers it: the publication's own measure (:attr:`Study.own`), or else the first, among
            those that were measured; the others show how the answer depends on the measure.
    """

    title: str
    rows: Sequence[ClaimJudgement]
    primary: ClaimJudgement

    @property
    def name(self) -> str:
        """A name for files, unique in the study."""
        return slug(self.rows[0].claim.name)

    @property
    def measured(self) -> bool:
        """Whether any of its claims was measured."""
        return any(row.verdict != "not measured" for row in self.rows)

    def answer(self, *, after_holm: bool = False) -> str:
        """Return the verdict of the primary claim."""
        return _verdict(self.primary, after_holm=after_holm)

    def others(self, *, after_holm: bool = False) -> str:
        """Return the counts of the other claims' verdicts, such as ``3 holds, 1 undecided``."""
        return count([_verdict(row, after_holm=after_holm) for row in self.rows if row is not self.primary])

    def told(self, row: ClaimJudgement) -> str:
        """Return the name of a claim among those of the question."""
        name = row.claim.variant or row.claim.name
        return f"{name} (primary)" if row is self.primary and len(self.rows) > 1 else name


def _verdict(row: ClaimJudgement, *, after_holm: bool) -> str:
    found: str = row.after_holm if after_holm else row.verdict
    if found != "holds":
        return found
    if row.floor_too:
        return FLOOR_TOO
    return EXPLAINED if row.claim.forced else found


def questions_of(judgement: StudyJudgement) -> list[Question]:
    """Return the claims of a study grouped by question, in the study's order."""
    found: dict[str, list[ClaimJudgement]] = {}
    for row in judgement:
        found.setdefault(row.claim.question or row.claim.name, []).append(row)
    return [Question(title, rows, _primary(rows, judgement.study.own)) for title, rows in found.items()]


def _primary(rows: Sequence[ClaimJudgement], own: Sequence[str]) -> ClaimJudgement:
    measured = [row for row in rows if row.verdict != "not measured"] or rows
    return next((row for of in own for row in measured if of in row.claim.variant), measured[0])


def count(verdicts: Sequence[str]) -> str:
    """Count verdicts, in the order of the rules.

    Example:
        >>> count(["holds", "fails", "holds"])
        '2 holds, 1 fails'
    """
    kinds = (VERDICTS[0], FLOOR_TOO, EXPLAINED, *VERDICTS[1:])
    return ", ".join(f"{verdicts.count(kind)} {kind}" for kind in kinds if kind in verdicts)


def measured_elsewhere(one: Judged, judged: Sequence[Judged]) -> set[str]:
    """Return names of claims that are not measured in one group of runs but in another one."""
    lacking = {row.claim.name for row in one.judgement if row.verdict == "not measured"}
    there = {row.claim.name for other in judged for row in other.judgement if row.verdict != "not measured"}
    return lacking & there


def heading(profile: Profile) -> str:
    """Return a profile's name, runs and seeds in a line."""
    pairs = sorted(
        {run.seeds for run in profile.runs}, key=lambda pair: [-1 if n is None else n for n in pair]
    )
    seeds = ", ".join(dict.fromkeys(map(str, pairs)))
    several = "s" if len(profile.runs) > 1 else ""
    runs = f"{len(profile.runs)} run{several}, seed{several} {seeds}"
    return f"{profile.name}: {runs}" if profile.name else runs


def verdict_table(judged: Sequence[Judged]) -> pd.DataFrame:
    """Return a row for each number of each claim: verdict, mean and intervals over seeds, floor, reasons.

    ``low`` and ``high`` are for another seed and another text; those of ``seeds`` for this text, and those of ``text``
    for these models. What holds for a claim as a whole is in the row of its first number.
    """
    return pd.DataFrame([row for one in judged for row in _rows(one, measured_elsewhere(one, judged))])


def _rows(one: Judged, elsewhere: set[str]) -> Iterator[dict[str, Any]]:
    primary = {question.primary.claim.name for question in questions_of(one.judgement)}
    for row in (row for row in one.judgement if row.claim.name not in elsewhere):
        claim, floor = row.claim, row.floor
        for i, part in enumerate(claim.parts):
            judged = row.parts[i] if row.parts else None
            yield {
                "runs": one.profile.name,
                "claim": claim.name,
                "primary": claim.name in primary if i == 0 else None,
                "part": part.label or i + 1,
                "number": number_words(part.number),
                "true_where": str(part.region),
                "verdict": row.verdict if i == 0 else None,
                "after_holm": row.after_holm if i == 0 else None,
                "verdict_rules_1": row.rules_1[0] if i == 0 and row.rules_1 else None,
                "after_holm_rules_1": row.rules_1[1] if i == 0 and row.rules_1 else None,
                "p": row.p if i == 0 else None,
                "seeds": judged.n if judged else None,
                "mean": judged.mean if judged else None,
                **_ends("", judged.interval if judged else None),
                **_ends("seeds_", judged.seeds_interval if judged else None),
                **_ends("text_", judged.text_interval if judged else None),
                "floor_too": row.floor_too if i == 0 and row.verdict == "holds" else None,
                "floor": floor.mean if floor and i == 0 else None,
                **_ends("floor_", floor.interval if floor and i == 0 else None),
                "reasons": "; ".join(row.reasons) if i == 0 else None,
                "exploratory": "; ".join(row.exploratory) if i == 0 and row.parts else None,
                "fingerprint": claim.fingerprint[:12] if i == 0 else None,
            }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{name}low": low, f"{name}high": high}

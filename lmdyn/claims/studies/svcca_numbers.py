"""Numbers of the SVCCA study: similarities to taggers and other models, and the tests of taggers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmdyn.claims.claim import Above, Condition
from lmdyn.claims.numbers import Difference, Estimate, Number
from lmdyn.claims.rows import Rows, Source
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

__all__ = ["TaggerTest", "in_domain", "learned", "similarity", "to_tagger"]

LEARNED = 0.05


@dataclass(frozen=True)
class TaggerTest(Number, Source):
    """A metric of ``lmdyn test`` for the tagger with a name, regardless of the seed at the end of its folder's name.

    Attributes:
        tagger: ``<labels>_<target>``, such as ``upos_next``, ``shuffled_upos_next``.
        metric: ``accuracy``, or ``majority``: the accuracy of the most frequent label of the test text.
    """

    tagger: str
    metric: str

    def names(self) -> tuple[str, ...]:
        """Return ``test/<metric>``."""
        return (f"test/test_{self.metric}",)

    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the tagger's run.

        Raises:
            NotMeasured: if there is none, or it was not tested.
            ValueError: if there are several.
        """
        found = [run for run in runs if re.fullmatch(rf"{re.escape(self.tagger)}(_\d+)*", run.name)]
        if len(found) > 1:
            raise ValueError(
                f"several taggers {self.tagger!r} of one seed: {', '.join(r.name for r in found)}; give only one"
            )
        if not found or f"test_{self.metric}" not in found[0].tested:
            raise NotMeasured(
                f"no tagger {self.tagger!r} has test_{self.metric} in a test.json: see `lmdyn test`"
            )
        return found[0], "test"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the metric; its error over texts is unknown."""
        return Estimate(float(self.locate(runs)[0].tested[f"test_{self.metric}"]))


def similarity(measure: str, name: str, site: str, reference: str, reference_site: str | None = None) -> Rows:
    """Return the similarity minus its bias, with its error."""
    where = (("reference", reference), ("reference_site", site if reference_site is None else reference_site))
    return Rows("Similarity", f"{measure}_corrected", site, where, name=name, error=f"{measure}_error", df=9)


def to_tagger(measure: str, tagger: str, site: str, target: str = "next") -> Rows:
    """Return the similarity of a site with that of the same name in a tagger; h2 with its only layer."""
    their = "embedding" if site == "embedding" else "h1"
    return similarity(measure, f"taggers_{target}", site, tagger, their)


def in_domain(measure: str, tagger: str, target: str) -> Rows:
    """Return the same similarity at h1 on the taggers' own test text."""
    text = "sem" if tagger.endswith(("semtag", "semtag_coarse")) else "pos"
    return similarity(measure, f"in_domain_{text}_{target}", "h1", tagger, "h1")


def learned(*taggers: str) -> tuple[Condition, ...]:
    """Return the conditions that taggers are above chance, judged by their test accuracy."""
    return tuple(
        Condition(
            f"the tagger {tagger} beats the most frequent label of its test text by {LEARNED}",
            Difference(TaggerTest(tagger, "accuracy"), TaggerTest(tagger, "majority")),
            Above(LEARNED),
        )
        for tagger in taggers
    )

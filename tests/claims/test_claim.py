"""Claims as objects: what they refuse, and fingerprints that say what decides and nothing else."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from lmdyn import claims as C
from lmdyn.claims import Above, At, Part, Rows

X = At(Rows("Observer", "x", C.Layer("last"), where=(("role", "target"),)))
Y = C.Tested("accuracy")


def claim(**about):
    given = {"name": "rises", "says": "x rises", "where": "figure 1", "parts": (Part(X, Above(0.1)),)}
    return C.Claim(**{**given, "floor": C.Change(Rows("Observer", "floor")), **about})


def test_regions():
    assert [str(r) for r in (Above(1), C.Below(-0.5), C.Within(-0.1, 0.1))] == ["≥ 1", "≤ -0.5", "-0.1 … 0.1"]
    for region, inside, outside in (
        (Above(1), 1.0, 0.9),
        (C.Below(-0.5), -1, 0),
        (C.Within(-0.1, 0.1), 0, 0.2),
    ):
        assert inside in region
        assert outside not in region


def test_what_a_claim_refuses():
    claim(void_unless=(C.Condition("the tagger is above chance", Y, Above(0.5)),))  # the control
    circular = C.Condition("x is large", C.Difference(Y, X), Above(0))
    for make, said in (
        (lambda: claim(void_unless=(circular,)), "reads Observer/x, as the claim does"),
        (lambda: claim(parts=()), "one or more"),
        (lambda: claim(floor=""), "why there is no floor"),
        (lambda: Part(X, Above(1.5), scale="fisher"), "on scale 'fisher'"),
        (lambda: claim(combine="some"), "'any'"),
        (lambda: C.Study("saphra2019_x", "", "", (claim(), claim())), "several claims called rises"),
        (lambda: C.Within(1, 0), "low < high"),
        (lambda: Above("much"), "expected a finite number"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            make()


def test_a_fingerprint_is_of_what_decides():
    known = "33ce6a89658fb26cfd71145f121e03c3f90d2e4aabeafd6ba89eabd8fd08abd9"
    assert claim().fingerprint == known
    words = dict.fromkeys(("says", "where", "matters", "question", "variant", "measured_by"), "other words")
    assert claim(**words, published=C.published_share(0.5, 10)).fingerprint == known
    assert claim(parts=(Part(X, Above(0.1), label="other"),)).fingerprint == known
    condition = C.Condition("accurate", Y, Above(0.5))
    parts = [Part(X, Above(0.2)), Part(X, C.Below(0.1)), Part(X, Above(0.1), scale="fisher")]
    parts += [Part(replace(X, step=step), Above(0.1)) for step in ("first", 1, 1.0)]
    others = [{"combine": "any"}, {"floor": "there is none"}, {"floor": X}, {"void_unless": (condition,)}]
    others.append({"void_unless": (replace(condition, region=Above(0.6)),)})
    changed = [claim(**about) for about in (*({"parts": (part,)} for part in parts), *others)]
    assert len({known, *(c.fingerprint for c in changed)}) == len(changed) + 1
    same = claim(void_unless=(replace(condition, says="in other words"),))
    assert same.fingerprint == claim(void_unless=(condition,)).fingerprint
    assert claim(floor="a").fingerprint == claim(floor="b").fingerprint


@dataclass(frozen=True)
class Own(C.Number):
    rows: Rows

    def of(self, runs):
        return C.Estimate(0.0)


def test_a_number_of_ones_own_has_revisions(monkeypatch):
    own = claim(parts=(Part(Own(X.rows), Above(0)),))
    assert own.reads() == {"Observer/x"}
    before = own.fingerprint
    monkeypatch.setattr(Own, "revision", 1)
    assert claim(parts=(Part(Own(X.rows), Above(0)),)).fingerprint != before


def test_fingerprints_are_equal_in_each_process_and_need_no_torch():
    """Names are hashed in another order there; provenance asks for all fingerprints before each training."""
    code = (
        "import sys; from tests.claims.test_claim import claim; import lmdyn.claims; print(claim().fingerprint)\n"
        "[len(c.fingerprint) for s in lmdyn.claims.STUDIES.values() for c in s.claims]\n"
        "print(*sorted({'torch', 'lightning', 'scipy'} & set(sys.modules)))"
    )
    env = {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **env}
    )
    assert done.stdout.splitlines() == [claim().fingerprint, ""]


def test_published_numbers_have_intervals():
    assert C.published_correlation(0.5, 28).interval() == pytest.approx((0.156, 0.736), abs=1e-3)
    assert C.published_share(0.9, 100).interval()[0] == pytest.approx(0.826, abs=1e-3)
    assert C.Published(0.3, 0.1, 0.5).interval() == (0.1, 0.5)
    assert C.Published(0.3).interval() is None
    with pytest.raises(ValueError, match="more than 3 pairs"):
        C.published_correlation(0.5, 3)

"""The claims on loops: what they read, and that an untrained core is no evidence of a trained one."""

import pytest

from lmdyn.callbacks import EncoderDynamics, LoopConvergence
from lmdyn.callbacks.observing.schema import declared
from lmdyn.claims import STUDIES

CLAIMS = STUDIES["geiping2025_loops"].claims
OBSERVERS = {cls.__name__: cls for cls in (EncoderDynamics, LoopConvergence)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_what_a_claim_reads(claim):
    assert claim.floor
    for name in (name for part in claim.parts for name in part.number.reads()):
        observer, quantity = name.split("/")
        assert declared(OBSERVERS[observer].recorded, quantity) is not None
    of_the_untrained = claim.name == "fixed_points_untrained"
    assert bool(claim.void_unless) != of_the_untrained


def test_each_claim_is_said_once():
    assert len({claim.fingerprint for claim in CLAIMS}) == len(CLAIMS) == 9

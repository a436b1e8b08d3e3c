"""Shared by the tests of interdependence."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked(monkeypatch):
    """As users run it: nothing checks annotations before the function's own checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

"""Findings and costs: what stops, what is warned of, what does not fit."""

import logging

import pytest
import torch

from lmdyn.callbacks.observing.findings import (
    Cost,
    Finding,
    ForeseenError,
    beyond_memory,
    expected,
    raise_or_warn,
)

CPU = torch.device("cpu")


def test_what_is_wrong_stops_and_what_is_missing_is_warned_of(caplog):
    missing = expected("3 words", "2", "give more text", stops=False)
    wrong = expected("2 labels", "1", "choose other `tasks`")
    other = Finding("run", "a schedule without steps")
    with caplog.at_level(logging.WARNING, "lmdyn"):
        assert raise_or_warn("sparsity", [missing, Cost("sums", 8)], CPU) == [Cost("sums", 8)]
    assert "sparsity: expected 3 words, got 2: give more text" in caplog.text
    with pytest.raises(ForeseenError, match="expected 2 labels, got 1: choose other") as stopped:
        raise_or_warn("probe", [missing, wrong, other], CPU)
    assert stopped.value.findings == (wrong, other)


def test_costs_are_compared_with_what_is_free(monkeypatch):
    free = {}
    monkeypatch.setattr("lmdyn.callbacks.observing.findings.free_memory", lambda device: free[device.type])
    small, large = Cost("sums", 100), Cost("features", 2000, "look at fewer sites")
    free["cpu"] = 2100
    assert beyond_memory([small, large], CPU) == []
    free["cpu"] = 2099
    (found,) = beyond_memory([small, large], CPU)
    assert "2.1 KiB of memory (features), got 2.0 KiB free on the host: look at fewer" in str(found)
    gpu, on_host = torch.device("cuda"), Cost("samples", 500, host=True)
    free |= {"cpu": 600, "cuda": 3000}
    assert beyond_memory([large, on_host], gpu) == []
    free["cpu"] = 400
    (found,) = beyond_memory([large, on_host], gpu)
    assert "free on the host" in str(found)
    free["cuda"] = None
    assert beyond_memory([large], gpu) == []  # nobody knows


def test_a_limit_of_the_container_counts(monkeypatch):
    from lmdyn.callbacks.observing import memory as machine

    monkeypatch.setattr(machine, "_available", lambda: 5000)
    monkeypatch.setattr(machine, "_left_of_limit", lambda: 3000)
    assert machine.free_memory(CPU) == 3000
    monkeypatch.setattr(machine, "_left_of_limit", lambda: None)
    assert machine.free_memory(CPU) == 5000

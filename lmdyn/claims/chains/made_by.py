"""How a set of runs was made: commits, versions, machines, times; from their provenance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmdyn.claims.recorded import RecordedRun
from lmdyn.runs.observed_run import ObservedRun, RunFolder
from lmdyn.runs.provenance import read_provenance

__all__ = ["made_by", "not_ended_words", "sessions_of"]


def sessions_of(run: ObservedRun) -> Sequence[Mapping[str, Any]]:
    """Return the commands that made a run, see :func:`~lmdyn.runs.provenance.begin_session`."""
    if isinstance(run, RecordedRun):
        return run.sessions
    return read_provenance(run.path)["sessions"] if isinstance(run, RunFolder) else []


def made_by(runs: Sequence[ObservedRun]) -> Iterator[str]:
    """Yield sentences about how runs were made."""
    sessions = [session for run in runs for session in sessions_of(run)]
    without = [run.name for run in runs if not sessions_of(run)]
    if not sessions:
        yield "these runs have no provenance.json: their versions and machine are unknown"
        return
    dates = sorted(str(session["began"])[:10] for session in sessions if session.get("began"))
    ended = [session for session in sessions if "cpu_s" in session]
    hours = sum(float(session["cpu_s"]) for session in ended) / 3600
    memory = max((session.get("peak_memory_mb", 0) for session in ended), default=0) / 1000
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    yield (
        f"made {days} (sessions: {len(sessions)}, of which {len(sessions) - len(ended)} did not end), with {hours:.2f} "
        f"CPU hours in all; at most {memory:.1f} GB of memory"
    )
    yield from dict.fromkeys(_environment(session) for session in sessions)
    if without:
        yield f"without provenance: {', '.join(without)}"
    if not_ended := not_ended_words(runs):
        yield not_ended


def not_ended_words(runs: Sequence[ObservedRun]) -> str:
    """Return a sentence about runs that are still trained, or were killed and not resumed; empty if there are none."""
    cut = []
    for run in runs:
        trained = [s for s in sessions_of(run) if {"fit", "fork"} & {*map(str, s.get("command", ())[:2])}]
        if trained and "ended" not in trained[-1]:
            cut.append(run.name)
    told = "numbers of the end of training are those of the last observation"
    return f"the training of {', '.join(cut)} has not ended: {told}" if cut else ""


def _environment(session: Mapping[str, Any]) -> str:
    versions = session.get("versions") or {}
    commit = f"commit {str(session.get('commit'))[:10]}{' with changes' * bool(session.get('dirty'))}"
    packages = ", ".join(
        f"{name} {versions.get(name, '?')}" for name in ("lmdyn", "torch", "numpy", "python")
    )
    machine = f"{session.get('processor')}, {session.get('device')}, threads: {session.get('threads')}"
    return f"{packages}; {commit}; {machine}"

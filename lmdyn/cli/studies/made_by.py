"""How a set of runs was made: commits, versions, machines, times; from their provenance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmdyn.claims.recorded import RecordedRun
from lmdyn.claims.runs import ObservedRun, RunFolder
from lmdyn.cli.studies.provenance import read_provenance

__all__ = ["made_by", "not_ended_words", "sessions_of"]


def sessions_of(run: ObservedRun) -> Sequence[Mapping[str, Any]]:
    """Return the commands that made a run, see :func:`~lmdyn.cli.studies.provenance.begin_session`."""
    if isinstance(run, RecordedRun):
        return run.sessions
    found: list[Mapping[str, Any]] = (
        read_provenance(run.path)["sessions"] if isinstance(run, RunFolder) else []
    )
    return found


def made_by(runs: Sequence[ObservedRun]) -> Iterator[str]:
    """Yield sentences about how runs were made."""
    sessions = [session for run in runs for session in sessions_of(run)]
    without = [run.name for run in runs if not sessions_of(run)]
    if not sessions:
        yield "these runs hold no provenance: by which versions and on what they were made is not known"
        return
    dates = sorted(str(session["began"])[:10] for session in sessions if session.get("began"))
    ended = [session for session in sessions if "cpu_s" in session]
    hours = sum(float(session["cpu_s"]) for session in ended) / 3600
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    cut = len(sessions) - len(ended)
    yield (
        f"made {days} in {len(sessions)} sessions of {hours:.2f} CPU hours"
        + (f" and {cut} that did not end" if cut else "")
        + (
            f"; at most {max(s['peak_memory_mb'] for s in ended) / 1000:.1f} GB of memory"
            if any("peak_memory_mb" in s for s in ended)
            else ""
        )
    )
    seen = dict.fromkeys(_environment(session) for session in sessions)
    yield from seen
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
    if not cut:
        return ""
    return (
        f"training has not ended of {', '.join(cut)}: what is said of its end is said of the last observation"
    )


def _environment(session: Mapping[str, Any]) -> str:
    versions = session.get("versions") or {}
    commit = session.get("commit")
    code = "of no checkout" if commit is None else f"at commit {str(commit)[:10]}"
    changed = " with changes" if session.get("dirty") else ""
    packages = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "numpy", "python") if name in versions
    )
    threads = session.get("threads")
    return (
        f"lmdyn {versions.get('lmdyn', '?')} {code}{changed}; {packages}; {session.get('processor')}, "
        f"{session.get('device')}, {threads} thread{'s' * (threads != 1)}"
    )

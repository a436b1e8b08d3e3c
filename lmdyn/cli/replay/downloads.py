"""A limit on the hub's cache: only what a replay downloaded is removed, after it was observed."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from huggingface_hub import scan_cache_dir

from lmdyn.runs.hub_checkpoints import HubCheckpoints


class Downloads:
    """Checkpoints of a hub model, of which what was downloaded here is removed after it was observed.

    Revisions that were in the cache before, and files that another revision shares, are never removed.

    Args:
        paths: the checkpoints; reading an item downloads it.
        cached: function that returns the folder of (name, revision) in the cache without downloading, or None if it is
            incomplete.
        cache: the cache of the hub.
    """

    def __init__(
        self, paths: HubCheckpoints, cached: Callable[[str, str | None], Path | None], cache: Path
    ) -> None:
        self._paths = paths
        self._cached = cached
        self._cache = cache
        self._held: set[int] = set()

    def __getitem__(self, step: int) -> Path:
        """Download a checkpoint.

        Raises:
            ValueError: if it cannot be reached.
        """
        there = self._cached(*self._paths.model(step))
        if there is not None:
            return there
        self._held.add(step)
        return self._paths[step]

    def done(self, step: int) -> None:
        """Remove a checkpoint that is no longer needed, if it was downloaded here."""
        if step not in self._held:
            return
        self._held.remove(step)
        name, revision = self._paths.model(step)
        # else a scan meets files that another worker removes
        with FileLock(self._cache / ".locks" / "lmdyn.lock"):
            cache = scan_cache_dir(self._cache)
            revisions = (one for of in cache.repos if of.repo_id == name for one in of.revisions)
            commits = [
                one.commit_hash for one in revisions if (revision or "main") in {*one.refs, one.commit_hash}
            ]
            cache.delete_revisions(*commits).execute()

    def close(self) -> None:
        """Stop: no checkpoint is needed any more."""
        for step in list(self._held):
            self.done(step)

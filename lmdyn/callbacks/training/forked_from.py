"""Where a run that goes on from another one's checkpoint comes from."""

from typing import Any

import lightning as L

__all__ = ["ForkedFrom"]


class ForkedFrom(L.Callback):
    """Says in ``config.yaml`` and in each full checkpoint from which run, and with which changes, a fork was made.

    ``lmdyn fork`` attaches it; it does nothing in training. Full checkpoints hold its arguments in the entry
    ``forked_from``.

    Args:
        run: folder of the run.
        step: of the full checkpoint from which this run went on.
        changes: settings that differ from those of the run, by their names on the command line.
        data_seed: the order of data from there on; None is that of the run.
        rate: the learning rate as a multiple of that of the run; None where it is not one number, or not known.

    Example:
        >>> fork = ForkedFrom("runs/lm", 600, {"model.init_args.dropout": "0"})
        >>> fork.about["step"]
        600
    """

    def __init__(
        self,
        run: str,
        step: int,
        changes: dict[str, str] | None = None,
        data_seed: int | None = None,
        rate: float | None = None,
    ) -> None:
        self.about = {
            "run": run, "step": step, "changes": dict(changes or {}), "data_seed": data_seed, "rate": rate
        }  # fmt: skip

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put it into a full checkpoint."""
        checkpoint["forked_from"] = dict(self.about)

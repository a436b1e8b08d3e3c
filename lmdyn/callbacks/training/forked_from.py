"""Origin of a run that continues from a checkpoint of another run."""

from typing import Any

import lightning as L


class ForkedFrom(L.Callback):
    """Records in ``config.yaml`` and in each full checkpoint the run from which a fork was made, and its changes.

    ``lmdyn fork`` attaches it; it has no effect on training. Full checkpoints contain its arguments in the entry
    ``forked_from``.

    Args:
        run: folder of the run.
        step: step of the full checkpoint from which this run continued.
        changes: settings that differ from those of the run, by their names on the command line.
        data_seed: seed of the data order from this step on; None for that of the run.
        rate: the learning rate as a multiple of that of the run; None if it is not a single number, or unknown.

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
        """Add the arguments to a full checkpoint."""
        checkpoint["forked_from"] = dict(self.about)

"""Learning rate schedule of a training of known length."""

__all__ = ["warmup_decay_factor"]


def warmup_decay_factor(progress: float, warmup_share: float) -> float:
    """Compute the learning rate factor at a share of the training: min(p / w, (1 − p) / (1 − w)), in [0, 1].

    It rises linearly to 1 at p = w, then falls linearly to 0 at p = 1, where it stays.

    Args:
        progress: completed share p of the training, at least 0: of its updates or of its time.
        warmup_share: share w in which the rate rises, in [0, 1]; with 0 it only falls, with 1 it only rises.

    Reference: transformers' ``get_linear_schedule_with_warmup``, by updates; Izsak, Berchansky & Levy 2021, by time.

    Example:
        >>> [warmup_decay_factor(p, 0.2) for p in (0.0, 0.1, 0.2, 0.6, 1.0, 1.5)]
        [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """
    if progress <= warmup_share and warmup_share > 0:
        return progress / warmup_share
    return 0.0 if progress >= 1 else (1 - progress) / (1 - warmup_share)

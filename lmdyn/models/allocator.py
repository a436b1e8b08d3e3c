"""Speed of training on CPU: freed memory stays with the process."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
GIBIBYTE = 1 << 30


def keep_freed_memory() -> bool:
    """Let glibc reuse freed blocks of up to 1 GiB instead of returning each to the system at once.

    By default, glibc allocates every block above 32 MiB from the system and returns it when freed. The logits of a
    language model are such blocks (88 MB for 1400 tokens and 15,800 words), allocated in each step, and half of the
    time of a step on CPU was spent in page faults on the first access to them (``benchmarks/lstm_throughput.py``:
    4,700 tokens per second without this call, 8,200 with it). Blocks above 1 GiB, and free memory above 2 GiB, are
    still returned. Computed numbers do not change.

    The setting applies to the whole process. If ``MALLOC_MMAP_THRESHOLD_`` or ``GLIBC_TUNABLES`` is set in the
    environment, it is not changed.

    Returns:
        Whether the setting was made; False without glibc (macOS, Windows, musl).
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, GIBIBYTE)) and bool(mallopt(M_TRIM_THRESHOLD, 2 * GIBIBYTE - 1))

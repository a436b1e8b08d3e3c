"""What does WeightSpectra cost for a transformer of 125 million parameters, in seconds and memory above the model?

    python benchmarks/weight_spectra.py --threads 2        (minutes; ``--smoke`` for seconds)

Question: at most 60 s on two cores, and 2 GB of memory above the model. The model is GPT-2 small of transformers with
random weights (its embedding is its output layer), in float32. One observation measures all 50 matrices and QK and OV
of all 144 heads; with ``--references``, also the distances from two other checkpoints, of which each is a copy of the
model. Memory is the peak of the process during the observation minus what it held before, sampled every 5 ms.
"""

import argparse
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import torch
from common import machine, quiet, table
from transformers import GPT2Config, GPT2LMHeadModel

from lmdyn.callbacks import Run, WeightSpectra


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--references", action="store_true", help="also distances from two checkpoints")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    quiet()
    torch.manual_seed(0)
    small = (
        {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 99} if args.smoke else {}
    )
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**small, **ends)).eval()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "checkpoints"
        saved.mkdir()
        if args.references:
            for step in (0, 1):
                torch.save({"state_dict": model.state_dict()}, saved / f"step={step:09d}.ckpt")
        observer = WeightSpectra(log_figures=False)
        observer.attach(Run(Path(folder), checkpoint_folder=saved))
        observer.bind(model)
        with Peak() as peak:
            wall, cpu = time.perf_counter(), time.process_time()
            observed = observer.observe(model, 2)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{machine()}, {args.threads} threads")
    found = [
        f"{parameters / 1e6:.1f} million, {parameters * 4 / 1e9:.2f} GB", f"{len(observed):,}", f"{wall:.1f} s",
        f"{cpu:.1f} s", f"{peak.above / 1e9:.2f} GB",
    ]  # fmt: skip
    print(table(["parameters", "rows", "by the clock", "CPU time", "memory above the model"], [found]))


class Peak:
    """Greatest memory of this process within the context, above that at its start."""

    above = 0

    def __enter__(self) -> "Peak":
        self._start, self._end = resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            self.above = max(self.above, resident() - self._start)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

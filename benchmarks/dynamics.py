"""What does the map of one token gain over the map of all tokens, and what would a GPU do with it?

- ``reduced``: steps per second of the long-term study (a trajectory and its perturbed copy, λ at the end of a window)
  on the map of one token, over those of the full map of 32 tokens, for the same sentences. The full map is
  transformers' own layer with its fused attention, under the same loop. Goal: at least 15 times with 64 sentences on
  CPU.
- ``exponents``: the time of all sentences × 10,000 steps of the map of one token, λ at the end of each window of 10, as
  measured over ``--windows-of-ten`` windows of a long run. Goal: 64 sentences in at most 15 minutes on two cores.
- ``spectrum``: the first ten Lyapunov exponents of the map of one token, orthonormalised every ten steps, against the
  trajectory alone. Goal: at most 12 times its time.
- ``memory``: growth of the process's peak when a long run has ten times the steps. Goal: no more than the numbers kept
  (one exponent a window and sentence).
- ``floor``: on a GPU, the time of 1,000 sentences × 100,000 steps from the measured rate, beside the time that its
  operations take at the float32 peak given by ``--peak`` (teraflops). Goal: at most 10 minutes.

Run: ``python benchmarks/dynamics.py --threads 2 --reps 5`` (minutes; ``--smoke`` for seconds)
"""

import argparse
import subprocess
import sys
from typing import Any

import torch
from common import machine, memory, now, quiet, spread, table
from transformers import AlbertConfig, AlbertModel

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.long_run import long_run
from lmdyn.analysis.dynamics.synchronized_map import synchronized_map
from lmdyn.analysis.orbits.lyapunov import local_lyapunov_exponents, random_perturbation
from lmdyn.analysis.orbits.lyapunov_spectrum import lyapunov_spectrum
from lmdyn.analysis.orbits.trajectories import exact_products, iterate, repeat

GOAL, MINUTES, TRAJECTORIES = 15.0, 15.0, 12.0
TAU, EXPONENTS, ROWS = 10, 10, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3, help="of the full map, in a repetition")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--peak", type=float, default=67.0, help="float32 teraflops of the GPU, without tensor cores"
    )
    parser.add_argument("--windows-of-ten", type=int, default=50)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    parser.add_argument("--windows", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.sentences, args.tokens, args.hidden_size, args.reps, args.steps = 4, 4, 16, 1, 2
        args.windows_of_ten = 2
    torch.set_num_threads(args.threads)
    quiet()
    if args.windows:
        print(peak_of_run(args))
        return
    rows = [*speed(args), *exponents_and_spectrum(args)]
    memory = [child(args, windows) for windows in (4, 40)]
    kept = 36 * args.sentences * 8
    rows.append(["memory, ten times the steps", f"{memory[0] / 1e6:.1f} MB", f"{memory[1] / 1e6:.1f} MB",
                 f"{(memory[1] - memory[0]) / 1e6:+.1f} MB", f"{kept / 1e6:.2f} MB kept"])  # fmt: skip
    print(machine())
    print(table(["question", "full map", "one token", "ratio", "goal"], rows))


def model(args: argparse.Namespace) -> tuple[EncoderMap, Any, torch.Tensor]:
    """ALBERT of the asked width, at first weights; its maps, and where sentences start."""
    torch.manual_seed(0)
    d = args.hidden_size
    config = AlbertConfig(
        vocab_size=1000, embedding_size=min(128, d), hidden_size=d, intermediate_size=4 * d,
        num_attention_heads=max(1, d // 64), num_hidden_layers=24, max_position_embeddings=512,
    )  # fmt: skip
    module = AlbertModel(config).to(args.device)
    batch = {"input_ids": torch.randint(1000, (args.sentences, args.tokens), device=args.device)}
    f = EncoderMap(module, batch)
    return f, synchronized_map(f), f.start(batch)


def speed(args: argparse.Namespace) -> list[list[str]]:
    f, reduced, x = model(args)
    token, device = x.mean(1), torch.device(args.device)
    # as many token vectors in a repetition of either
    steps = {"full": args.steps, "one": args.steps * args.tokens}
    power = {"full": repeat(f, steps["full"]), "one": repeat(reduced, steps["one"])}
    start = {"full": (x, random_perturbation(x)), "one": (token, random_perturbation(token))}
    rates: dict[str, list[float]] = {"full": [], "one": []}
    with exact_products():
        for rep in range(args.reps + 1):
            for way in ("full", "one"):
                before = now(device)
                x, delta = start[way]
                power[way](torch.cat([x, x + delta]))
                if rep:  # the first is for warming up
                    rates[way].append(args.sentences * steps[way] / now(device).since(before).wall)
    ratios = [one / full for one, full in zip(rates["one"], rates["full"], strict=True)]
    rows = [
        [
            f"reduced: {args.sentences} sentences, {args.tokens} tokens, d {args.hidden_size}",
            f"{_median(rates['full']):.1f} steps/s", f"{_median(rates['one']):.1f} steps/s",
            spread(ratios, "{:.1f}"), f"{GOAL:g}",
        ]
    ]  # fmt: skip
    if device.type == "cuda":
        d = args.hidden_size
        operations = 2 * 1000 * 100_000 * 2 * 9 * d * d
        least = operations / (args.peak * 1e12)
        needed = 1000 * 100_000 / _median(rates["one"])
        rows.append(
            ["1,000 sentences × 100,000 steps", f"{least:.0f} s at the peak", f"{needed:.0f} s",
             f"{needed / least:.1f}", "600 s"]
        )  # fmt: skip
    return rows


def exponents_and_spectrum(args: argparse.Namespace) -> list[list[str]]:
    _, reduced, x = model(args)
    token, device = x.mean(1), torch.device(args.device)
    few, steps = token[:ROWS], TAU * max(2, args.windows_of_ten // 5)

    def trajectory() -> None:
        iterate(reduced, few, steps, {})

    def spectrum() -> None:
        lyapunov_spectrum(reduced, few, min(EXPONENTS, few.shape[1]), steps, every=TAU, method="perturbation")

    def tangents() -> None:
        lyapunov_spectrum(reduced, few, min(EXPONENTS, few.shape[1]), steps, every=TAU)

    def exponents() -> None:
        local_lyapunov_exponents(reduced, token, TAU, TAU * args.windows_of_ten)

    seconds: dict[str, list[float]] = {}
    with exact_products():
        for rep in range(args.reps + 1):
            for work in (trajectory, spectrum, tangents, exponents):
                before = now(device)
                work()
                if rep:
                    seconds.setdefault(work.__name__, []).append(now(device).since(before).wall)
    whole = [one * 10_000 / (TAU * args.windows_of_ten) / 60 for one in seconds["exponents"]]
    what = f"exponents: {args.sentences} sentences × 10,000 steps, d {args.hidden_size}"
    rows = [[what, "–", spread(whole, "{:.1f} min"), "–", f"{MINUTES:g} min"]]
    for work, name in (("spectrum", "by perturbations"), ("tangents", "by derivatives")):
        ratios = [a / b for a, b in zip(seconds[work], seconds["trajectory"], strict=True)]
        what = f"spectrum {name}: {EXPONENTS} exponents of {len(few)} sentences, against the trajectory"
        times = [f"{_median(seconds[way]):.2f} s" for way in ("trajectory", work)]
        rows.append([what, *times, spread(ratios, "{:.1f}"), f"{TRAJECTORIES:g}"])
    return rows


def _median(values: list[float]) -> float:
    return float(torch.tensor(values).median())


def child(args: argparse.Namespace, windows: int) -> float:
    """Growth of the peak memory by a long run, in a process of its own."""
    sizes = ["sentences", "tokens", "threads"]
    options = [part for s in sizes for part in (f"--{s}", str(getattr(args, s)))]
    options += [
        "--hidden-size",
        str(min(args.hidden_size, 128)),
        "--windows",
        str(windows),
        "--device",
        args.device,
    ]
    command = [sys.executable, __file__, *options]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def peak_of_run(args: argparse.Namespace) -> float:
    f, reduced, x = model(args)
    with exact_products():
        long_run(f, x, 50, 200, reduced=reduced)  # libraries' own memory is there before
        before = memory("VmRSS")
        long_run(f, x, 50, 50 * args.windows, reduced=reduced)
    return memory("VmHWM") - before


if __name__ == "__main__":
    main()

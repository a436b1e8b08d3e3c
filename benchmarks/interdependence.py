"""What does interdependence cost: of all pairs of words against one pair at a time, and one decomposition?

Questions: 1. the time of the direct method (three decompositions for each pair of words up to distance 8, one sentence
at a time, each up to the later word) over that of ``pairwise_interdependence``. Goal on 2 cores: at least 100, equal
to 1e-10 in float64. 2. the time of the contextual decomposition of a batch over that of the plain forward pass. Goal:
at most 12.

Run: ``LMDYN_DATA=… python benchmarks/interdependence.py --threads 2 --reps 5`` (some ten minutes; ``--smoke`` for
seconds)

The sentences are those of UD English EWT's development set of 2 to 40 words, or random lengths without the data; the
LSTM has one layer of 400 units with PyTorch's initial weights, the word vectors are random. The direct method is timed
on a random sample of the pairs and extrapolated to all; as a second baseline all pairs of a sentence are decomposed at
once, as masks of one call, extrapolated by words. All in the precision asked for; values are compared in float64.

Memory is the growth of the process's greatest resident set while all pairs are computed for the first time.
"""

import argparse
import os
import resource
from itertools import pairwise
from pathlib import Path

import torch
from common import Seconds, machine, now, quiet, spread, table
from torch import Tensor, nn

from lmdyn.analysis import contextual_decomposition, decompositional_interdependence, pairwise_interdependence
from lmdyn.datamodules import ConlluCorpus

GOAL_PAIRS, GOAL_FORWARD = 100.0, 12.0
DISTANCE = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden-size", type=int, default=400)
    parser.add_argument("--sample", type=int, default=300, help="pairs of the direct method")
    parser.add_argument("--max-rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=128, help="sentences at once")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.hidden_size, args.sample, args.reps = 8, 3, 1
    torch.set_num_threads(args.threads)
    quiet()
    run(args)


def lengths_of_sentences(smoke: bool) -> list[int]:
    """Words of each sentence of 2 to 40 words."""
    path = Path(os.environ.get("LMDYN_DATA", "")) / "ud_ewt" / "en_ewt-ud-dev.conllu"
    if path.is_file() and not smoke:
        corpus = ConlluCorpus(validation=str(path))
        lengths = [len(s.words) for d in corpus.documents("validation") for s in d]
    else:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, 45, (20 if smoke else 2000,), generator=generator).tolist()
    return sorted((n for n in lengths if 2 <= n <= 40), reverse=True)


@torch.no_grad()
def run(args: argparse.Namespace) -> None:
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    torch.manual_seed(0)
    size = args.hidden_size
    lstm = nn.LSTM(size, size, batch_first=True).to(device, dtype)
    lengths = lengths_of_sentences(args.smoke)
    groups = [lengths[i : i + args.batch] for i in range(0, len(lengths), args.batch)]
    batches = []
    for group in groups:
        inputs = torch.randn(len(group), group[0], size, device=device, dtype=dtype)
        batches.append(
            (inputs, torch.arange(group[0], device=device) < torch.tensor(group, device=device)[:, None])
        )

    def every_pair() -> list[Tensor]:
        return [
            pairwise_interdependence(lstm, x, DISTANCE, mask=mask, max_rows=args.max_rows).hidden
            for x, mask in batches
        ]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = every_pair()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    pairs = [
        (b, row, left, left + d + 1)
        for b, di in enumerate(values)
        for row, left, d in (~di.isnan()).nonzero().tolist()
    ]
    chosen = [pairs[i] for i in torch.randperm(len(pairs))[: args.sample].tolist()]

    def direct(b: int, row: int, left: int, right: int) -> Tensor:
        x = batches[b][0][row : row + 1, : right + 1]
        words = torch.eye(right + 1, dtype=torch.bool, device=device)
        h_a, h_b, h_ab = (
            contextual_decomposition(lstm, x, focus[None]).relevant[-1][0, right]
            for focus in (words[left], words[right], words[left] | words[right])
        )
        return torch.linalg.vector_norm(h_ab - h_a - h_b) / torch.linalg.vector_norm(h_ab)

    def sentence(b: int, row: int) -> None:
        n = int(batches[b][1][row].sum())
        x = batches[b][0][row : row + 1, :n]
        words = torch.eye(n, dtype=torch.bool, device=device)
        left, right = torch.triu_indices(n, n, 1, device=device)
        near = right - left <= DISTANCE
        decompositional_interdependence(lstm, x, words[left[near]][:, None], words[right[near]][:, None])

    rows = [[], [], []]
    sentences = sorted({(b, row) for b, row, _, _ in chosen})[:: max(1, len(chosen) // 20)]
    share = sum(int(batches[b][1][row].sum()) for b, row in sentences) / sum(lengths)
    for _ in range(args.reps):
        times: list[Seconds] = [now(device)]
        every_pair()
        times.append(now(device))
        for pair in chosen:
            direct(*pair)
        times.append(now(device))
        for chosen_sentence in sentences:
            sentence(*chosen_sentence)
        times.append(now(device))
        took = [end.since(start).wall for start, end in pairwise(times)]
        for k, scale in enumerate((1.0, len(pairs) / len(chosen), 1 / share)):
            rows[k].append(took[k] * scale)
    double = nn.LSTM(size, size, batch_first=True).to(device, torch.float64)
    double.load_state_dict(lstm.state_dict())
    worst = 0.0
    for b, row, left, right in chosen[:50]:
        x, mask = batches[b][0][row : row + 1].double(), batches[b][1][row : row + 1]
        words = torch.eye(x.shape[1], dtype=torch.bool, device=device)
        one = decompositional_interdependence(double, x, words[left][None], words[right][None], mask=mask)
        both = pairwise_interdependence(double, x, DISTANCE, mask=mask).hidden[0, left, right - left - 1]
        worst = max(worst, float((one[0] - both).abs()))
    print(
        f"{machine()}; {args.threads} threads, {args.dtype}, {args.reps} repetitions, median (least to greatest)\n"
    )
    print(f"{len(pairs):,} pairs of {len(lengths):,} sentences, {size} units; memory {memory:.0f} MB at --max-rows "
          f"{args.max_rows}; greatest difference to the direct method in float64 {worst:.1e}\n")  # fmt: skip
    names = [
        "all pairs at once",
        f"direct, from {len(chosen)} pairs",
        f"a sentence at once, from {len(sentences)}",
    ]
    ratios = [[t / fast for t, fast in zip(times, rows[0], strict=True)] for times in rows]
    goals = ["", f"{GOAL_PAIRS:.0f}", ""]
    print(table(["method", "seconds for all", "times the first", "goal"],
                [[n, spread(t, "{:.2f}"), spread(r, "{:.1f}"), g]
                 for n, t, r, g in zip(names, rows, ratios, goals, strict=True)]))  # fmt: skip
    decomposition(args, lstm, device, dtype)


def decomposition(args: argparse.Namespace, lstm: nn.LSTM, device: torch.device, dtype: torch.dtype) -> None:
    """One decomposition of a batch of 40 × 35 words against the plain forward pass."""
    x = torch.randn(40, 35, args.hidden_size, device=device, dtype=dtype)
    focus = torch.zeros(40, 35, dtype=torch.bool, device=device)
    focus[:, 10:13] = True
    plain, split = [], []
    for _ in range(args.reps + 1):
        start = now(device)
        for _ in range(5):
            lstm(x)
        middle = now(device)
        for _ in range(5):
            contextual_decomposition(lstm, x, focus)
        plain.append(middle.since(start).wall / 5)
        split.append(now(device).since(middle).wall / 5)
    plain, split = plain[1:] or plain, split[1:] or split
    print("\n" + table(
        ["batch of 40 × 35 words", "milliseconds", "times the first", "goal"],
        [["forward", spread([1e3 * t for t in plain], "{:.1f}"), "1", ""],
         ["decomposition", spread([1e3 * t for t in split], "{:.1f}"),
          spread([s / p for s, p in zip(split, plain, strict=True)], "{:.1f}"), f"{GOAL_FORWARD:.0f}"]],
    ))  # fmt: skip


if __name__ == "__main__":
    main()

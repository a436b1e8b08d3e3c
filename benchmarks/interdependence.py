"""What does interdependence cost: all pairs of words against one pair at a time, one decomposition, Shapley values?

Questions: 1. the time of the direct method (three decompositions for each pair of words up to distance 8, one sentence
at a time, each up to the later word) over that of ``pairwise_interdependence``. Goal on 2 cores: at least 100, equal
to 1e-10 in float64. 2. the time of the contextual decomposition of a batch over that of the plain forward pass. Goal:
at most 12. 3. pairs of words a second of ``pairwise_shapley_interaction`` against one forward pass for each coalition
of each pair.

Run: ``LMDYN_DATA=… python benchmarks/interdependence.py --threads 2 --reps 5`` (some ten minutes; ``--smoke`` for
seconds; ``--part decomposition`` is questions 1 and 2, ``--part shapley`` question 3)

The sentences are those of UD English EWT's development set of 2 to 40 words, or random lengths without the data; the
LSTM has one layer of 400 units with PyTorch's initial weights, the word vectors are random. The direct method is timed
on a random sample of the pairs and extrapolated to all; as a second baseline all pairs of a sentence are decomposed at
once, as masks of one call, extrapolated by words. All in the precision asked for; values are compared in float64.

The model of question 3 is a GPT-2 of random weights, ``--layers`` of ``--size`` units, read at its last hidden state;
absent words are one id. Loops are timed on a random sample of the pairs and cut each sentence behind the later word, as
a user's own loop would; neither shares a coalition between pairs. ``exact`` are sentences of up to 10 words and all
coalitions, ``drawn`` those of 11 to 24 words with 64 coalitions (256 passes a pair in the loop). Exact values
are compared in float64.

Memory is the growth of the process's greatest resident set while all pairs are computed for the first time.
"""

import argparse
import itertools
import math
import os
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from common import Seconds, machine, now, quiet, spread, table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from lmdyn.analysis import (
    contextual_decomposition,
    decompositional_interdependence,
    pairwise_interdependence,
    pairwise_shapley_interaction,
)
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
    parser.add_argument("--part", default="all", choices=["all", "decomposition", "shapley"])
    parser.add_argument("--size", type=int, default=128, help="units of the GPT-2")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=12, help="of each kind, for the GPT-2")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.hidden_size, args.sample, args.reps = 8, 3, 1
        args.size, args.layers, args.sentences = 8, 1, 2
    torch.set_num_threads(args.threads)
    quiet()
    print(
        f"{machine()}; {args.threads} threads, {args.dtype}, {args.reps} repetitions, median (least to greatest)\n"
    )
    if args.part != "shapley":
        run(args)
    if args.part != "decomposition":
        shapley(args)


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


DRAWN = 64  # coalitions of a pair where not all are taken
WORDS = 1000


@torch.no_grad()
def shapley(args: argparse.Namespace) -> None:
    """Pairs a second, of whole sentences and in loops."""
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    torch.manual_seed(0)
    size = {"n_embd": args.size, "n_layer": args.layers, "n_head": max(1, args.size // 64), "n_positions": 64}
    size |= {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2Model(GPT2Config(vocab_size=WORDS, use_cache=False, **size)).to(device, dtype).eval()

    def forward(ids: Tensor) -> Tensor:
        return model(input_ids=ids).last_hidden_state

    lengths = lengths_of_sentences(args.smoke)
    few = [n for n in lengths if n <= 10][:: max(1, sum(n <= 10 for n in lengths) // args.sentences)]
    many = [n for n in lengths if 10 < n <= 24][
        :: max(1, sum(10 < n <= 24 for n in lengths) // args.sentences)
    ]
    rows = []
    for name, chosen, how, subsets in (
        ("exact", few, {}, None),
        ("drawn", many, {"exact_up_to": 0, "samples": DRAWN}, DRAWN),
    ):
        batches = [torch.randint(1, WORDS, (chosen.count(n), n), device=device) for n in sorted(set(chosen))]
        pairs = [
            (ids[row], left, right)
            for ids in batches
            for row in range(len(ids))
            for right in range(ids.shape[1])
            for left in range(max(0, right - DISTANCE), right)
        ]
        sample = [pairs[i] for i in torch.randperm(len(pairs))[: max(1, args.sample // 10)].tolist()]
        speeds: list[list[float]] = [[], []]
        for _ in range(args.reps):
            times = [now(device)]
            for ids in batches:
                pairwise_shapley_interaction(forward, ids, DISTANCE, baseline=0, **how)
            times.append(now(device))
            for pair in sample:
                coalition_by_coalition(forward, *pair, subsets)
            times.append(now(device))
            took = [end.since(start).wall for start, end in pairwise(times)]
            for k, number in enumerate((len(pairs), len(sample))):
                speeds[k].append(number / took[k])
        for method, speed in zip(("all pairs of a sentence", "one call a coalition"), speeds, strict=True):
            ratio = [a / b for a, b in zip(speeds[0], speed, strict=True)]
            rows.append([name, f"{len(pairs):,}", method, spread(speed, "{:,.1f}"), spread(ratio, "{:.1f}")])
    print(f"\nGPT-2 of {args.layers} layers of {args.size} units; {DRAWN} coalitions where they are drawn\n")
    print(table(["coalitions", "pairs", "method", "pairs a second", "times slower than the first"], rows))
    print(f"\ngreatest difference of exact values in float64 {difference(model.double(), few):.1e}")


def coalition_by_coalition(
    forward: Callable[[Tensor], Tensor], ids: Tensor, left: int, right: int, subsets: int | None
) -> Tensor:
    """One pair by its definition: a forward pass for each coalition."""
    ids = ids[: right + 1]
    others = [p for p in range(right) if p != left]
    if subsets is None:
        n = right + 1
        chosen = [
            (2 / n / math.comb(n - 1, k), list(s))
            for k in range(n - 1)
            for s in itertools.combinations(others, k)
        ]
    else:
        u = torch.rand(subsets)
        chosen = [(float(2 * (1 - p)) / subsets, [o for o in others if torch.rand(()) < p]) for p in u]
    interaction = torch.zeros(())
    for weight, s in chosen:
        for sign, own in ((1, [left, right]), (-1, [left]), (-1, [right]), (1, [])):
            row = torch.zeros_like(ids)
            row[s + own] = ids[s + own]
            interaction = interaction + weight * sign * forward(row[None])[0, right].double()
    return torch.linalg.vector_norm(interaction) / torch.linalg.vector_norm(
        forward(ids[None])[0, right].double()
    )


def difference(model: nn.Module, lengths: list[int]) -> float:
    """The greatest difference of both ways, on one short sentence."""

    def forward(ids: Tensor) -> Tensor:
        return model(input_ids=ids).last_hidden_state

    n = min(max(lengths), 6)
    ids = torch.randint(1, WORDS, (1, n), device=next(model.parameters()).device)
    found = pairwise_shapley_interaction(forward, ids, n - 1, baseline=0).value[0]
    return max(
        abs(float(found[left, right - left - 1] - coalition_by_coalition(forward, ids[0], left, right, None)))
        for left, right in itertools.combinations(range(n), 2)
    )


if __name__ == "__main__":
    main()

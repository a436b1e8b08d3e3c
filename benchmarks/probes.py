"""What do the probes of all sites cost, against those of one?

Question: wall time of the frozen pass over the tokens and of all probes of 12 sites × 4 tasks, over that of the pass
and the probes of one site (4 tasks). Goal for a model as wide as ALBERT-base (hidden size 768): at most 3.

Run: ``python benchmarks/probes.py --threads 2 --reps 5`` (some 15 minutes on 2 cores; ``--smoke`` for seconds)

The model is ``transformers.AlbertModel`` of ALBERT-base's sizes with random weights; a site is the output of one of
the 12 runs of its shared layer. The tasks have as many classes as
universal POS tags (17), treebank POS tags (50), topics (14) and semantic tags (67); the label of a token is the
greatest of as many random projections of its embedding, so that there is something to learn. Probes are trained for 10
epochs on 4/5 of the tokens and scored on the others, by ``lmdyn.analysis.probing.probes.diagnostic_probe``.

- pass:   forward over all tokens in eager attention; hidden states of the sites as (tokens, 768) float32
- probes: standardisation, training and scores of one site (the middle one), or of all of them

The two ways alternate. Ratios are of pass and probes together, pair by pair; seconds are of the clock on the wall, and
of all threads on the CPU, which other processes disturb less.
"""

import argparse
from collections.abc import Sequence

import torch
from common import Seconds, machine, now, quiet, spread, table
from torch import Tensor
from transformers import AlbertConfig, AlbertModel

from lmdyn.analysis.probing.probes import DiagnosticClassifier, diagnostic_probe

GOAL = 3.0
TASKS = {"upos": 17, "xpos": 50, "topic": 14, "semtag": 67}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=8192, help="training and held-out tokens together")
    parser.add_argument("--time", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--sites", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", default=["linear", "mlp"], choices=["linear", "mlp"])
    parser.add_argument(
        "--hidden-size", type=int, help="of an mlp; as wide as the representation if not given"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    size = 768
    if args.smoke:
        args.threads = 1
        args.tokens, args.time, args.sites, args.epochs, args.reps, size = 256, 16, 3, 1, 1, 24
    torch.set_num_threads(args.threads)
    quiet()
    run(args, size)


@torch.no_grad()
def run(args: argparse.Namespace, size: int) -> None:
    device = torch.device(args.device)
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=30_000, embedding_size=min(128, size), hidden_size=size, intermediate_size=4 * size,
        num_hidden_layers=args.sites, num_attention_heads=12, attn_implementation="eager",
    )  # fmt: skip
    model = AlbertModel(config, add_pooling_layer=False).eval().to(device)
    input_ids = torch.randint(config.vocab_size, (args.tokens // args.time, args.time), device=device)
    tokens = input_ids.numel()
    embedded = model.embeddings(input_ids).flatten(0, 1)
    labels = {
        task: (embedded @ torch.randn(embedded.shape[1], k, device=device)).argmax(1)
        for task, k in TASKS.items()
    }
    cut = tokens * 4 // 5
    names = [f"layer@{i}" for i in range(args.sites)]

    def forward(sites: Sequence[str]) -> dict[str, Tensor]:
        rows = [model(part, output_hidden_states=True).hidden_states[1:] for part in input_ids.split(8)]
        return {
            site: torch.cat([row[i].flatten(0, 1) for row in rows])
            for i, site in enumerate(names)
            if site in sites
        }

    def probes(features: dict[str, Tensor], kind: str) -> None:
        hidden_size = args.hidden_size if kind == "mlp" else None
        classifier = DiagnosticClassifier(kind=kind, hidden_size=hidden_size, epochs=args.epochs)
        diagnostic_probe(
            {site: x[:cut] for site, x in features.items()}, {task: y[:cut] for task, y in labels.items()},
            {site: x[cut:] for site, x in features.items()}, {task: y[cut:] for task, y in labels.items()},
            TASKS, classifier=classifier,
        )  # fmt: skip

    print(
        f"{tokens} tokens, {cut} of them for training, {args.epochs} epochs, {args.sites} sites × {len(TASKS)} tasks "
        f"of {sum(TASKS.values())} classes, width {size}; {args.device}, {args.threads} threads; {machine()}\n"
    )
    ways = {"1 site": [names[args.sites // 2]], f"{args.sites} sites": names}
    probes(forward(ways["1 site"]), "linear")  # warms up
    rows = []
    for kind in args.kinds:
        passes: dict[str, list[Seconds]] = {way: [] for way in ways}
        probing: dict[str, list[Seconds]] = {way: [] for way in ways}
        for _ in range(args.reps):
            for way, sites in ways.items():
                start = now(device)
                features = forward(sites)
                middle = now(device)
                probes(features, kind)
                passes[way].append(middle.since(start))
                probing[way].append(now(device).since(middle))
        for clock in ("wall", "cpu"):
            first, second = (
                {way: [getattr(s, clock) for s in part[way]] for way in ways} for part in (passes, probing)
            )
            totals = [[a + b for a, b in zip(first[way], second[way], strict=True)] for way in ways]
            ratios = [every / one for one, every in zip(*totals, strict=True)]
            cells = (first[way] for way in ways), (second[way] for way in ways), totals, [ratios]
            rows.append(
                [kind, clock, *(spread(values, "{:.2f}") for part in cells for values in part), f"{GOAL:.0f}"]
            )
    header = [f"{part}, {way}" for part in ("pass", "probes", "both") for way in ways]
    print(table(["kind", "clock", *header, "ratio of both", "goal"], rows))


if __name__ == "__main__":
    main()

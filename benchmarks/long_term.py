"""What does a network of a million steps cost, of 64 sentences on the map of one token?

Question: the time of one initial network of the long-term study (Inoue et al. 2022, section II.B: 10⁶ steps):
sentences go by the map of all tokens until these are one, then by the map of one token, with λ of every window. Goal on
an H100: at most 70 s a network, estimated from operations and launches.

Run: ``python benchmarks/long_term.py`` on a GPU (``--smoke`` for seconds)

Networks have ALBERT-large's sizes and first weights, one after the other, in float32 without TF32. Given are seconds,
steps a second of all sentences, how many have synchronized, and mean λ of the last tenth.
"""

import argparse
import time

import torch
from common import machine, now, quiet, table
from transformers import AlbertConfig, AlbertModel

from lmdyn.analysis import EncoderMap, exact_products, long_run, synchronized_map

GOAL = 70.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--networks", type=int, default=1)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.sentences, args.hidden_size = 1000, 4, 16
    quiet()
    device, rows = torch.device(args.device), []
    for seed in range(11, 11 + args.networks):
        torch.manual_seed(seed)
        d = args.hidden_size
        config = AlbertConfig(
            vocab_size=1000, embedding_size=min(128, d), hidden_size=d, intermediate_size=4 * d,
            num_attention_heads=max(1, d // 64), num_hidden_layers=24, max_position_embeddings=512,
        )  # fmt: skip
        batch = {"input_ids": torch.randint(1000, (args.sentences, 32)).to(device)}
        f = EncoderMap(AlbertModel(config).to(device), batch)
        reduced = synchronized_map(f)
        with exact_products():
            before = now(device)
            run = long_run(f, f.start(batch), 50, args.steps, reduced=reduced)
            seconds = now(device).since(before).wall
        last = run.exponents[-max(1, len(run.exponents) // 10) :]
        rows.append([
            f"network {seed}: {args.sentences} sentences × {args.steps:,} steps, d {d}", f"{seconds:.1f}",
            f"{args.sentences * args.steps / seconds:.3g}", f"{int((run.switched_at >= 0).sum())}",
            f"{float(last.nanmean()):.2e}", f"{GOAL:g}" if args.steps == 1_000_000 else "",
        ])  # fmt: skip
        print(f"# {rows[-1]} at {time.strftime('%H:%M:%S')}", flush=True)
    print(machine())
    print(table(["long term", "seconds", "steps/s", "synchronized", "λ at the end", "goal, s"], rows))


if __name__ == "__main__":
    main()

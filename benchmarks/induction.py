"""Does Induction see the phase change of a two-layer transformer, and none of a one-layer one?

Question: prefix matching of the best head, losses on repeated random tokens, loss late minus early in the text, and
what ablation of the best head costs, while a small transformer learns rows in which random tokens repeat; the same for
one layer. No goal: the numbers are what they are. Also CPU time of an observation, in training steps.

Run: ``python benchmarks/induction.py --threads 1`` (some 5 minutes on one core; ``--family gpt2``; ``--smoke``)

A row is 64 random tokens, in which a sequence occurs a second time: x r y r z, with random lengths of x, r (8 to 24)
and y. With few distances between the two, attention to a fixed distance, which one layer can learn, would do as well as
induction. The text that is observed is of the same kind; the observer's own rows are two times 25 tokens.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from common import machine, now, quiet, table
from torch import Tensor

from lmdyn.callbacks import Induction, Run
from lmdyn.models import CausalLanguageModel

TYPES, TIME = 64, 64
LOSSES = ("first_loss", "second_loss", "late_minus_early")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--every", type=int, default=300, help="updates between observations")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 1])
    parser.add_argument(
        "--family", default="llama", choices=["llama", "gpt2"], help="positions: rotary, or vectors"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="of a batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="few updates, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.updates, args.every, args.width = 2, 1, 8
    torch.set_num_threads(args.threads)
    quiet()
    rows = [found for layers in args.layers for found in train(layers, args)]
    print(machine())
    head = [
        "layers",
        "updates",
        "best prefix matching",
        "best previous token",
        "loss first",
        "second",
        "late − early",
    ]
    print(table([*head, "second, best ablated", "second, random ablated", "training steps"], rows))


def text(number: int, generator: torch.Generator) -> Tensor:
    """Rows of random tokens in which a sequence repeats."""
    rows = torch.randint(TYPES, (number, TIME), generator=generator)
    lengths = torch.randint(8, 25, (number, 1), generator=generator)
    share = torch.rand(2, number, 1, generator=generator).sort(0).values
    first, second = ((part * (TIME - 2 * lengths + 1)).long() for part in share)
    distance, place = second - first + lengths, torch.arange(TIME)
    repeated = (place >= second + lengths) & (place < second + 2 * lengths)
    return rows.gather(1, (place - distance).where(repeated, place))


def train(layers: int, args: argparse.Namespace) -> list[list[str]]:
    """Train a model, and return a row of the table for each observation."""
    torch.manual_seed(args.seed)
    sizes = {"hidden_size": args.width, "num_hidden_layers": layers, "num_attention_heads": args.heads}
    own = {
        "llama": {"intermediate_size": 2 * args.width, "num_key_value_heads": args.heads},
        "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }[args.family]
    shared = {"max_position_embeddings": TIME, "initializer_range": 0.1, "tie_word_embeddings": True}
    model = CausalLanguageModel(args.family, {**sizes, **own, **shared}, vocab_size=TYPES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    observer = Induction(vocab_size=TYPES, top=1, draws=layers * args.heads - 1)
    held_out = text(200, torch.Generator().manual_seed(1))
    observer.probe = [{"input_ids": ids} for ids in held_out.split(50)]
    found, generator = [], torch.Generator().manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        observer.attach(Run(Path(folder)))
        observer.bind(model)
        step, begun = 0.0, now(torch.device("cpu"))
        for update in range(args.updates + 1):
            if update % args.every == 0:
                step = now(torch.device("cpu")).since(begun).cpu / args.every if update else 0.0
                begun = now(torch.device("cpu"))
                observed = observer.observe(model, update)
                cost = now(torch.device("cpu")).since(begun).cpu / step if step else float("nan")
                values = observed.groupby(["quantity", "ablated"], observed=True)["value"].agg(
                    ["max", "mean"]
                )
                second = float(values.loc[("second_loss", ""), "mean"])
                rises = [float(values.loc[("second_loss_rise", name), "mean"]) for name in ("best", "random")]
                numbers = [
                    *(float(values.loc[(name, ""), "max"]) for name in ("prefix_matching", "previous_token")),
                    *(float(values.loc[(name, ""), "mean"]) for name in LOSSES),
                    *(second + rise for rise in rises),
                ]  # fmt: skip
                found.append(
                    [
                        f"{layers}",
                        f"{update:,}",
                        *(f"{n:.3f}" for n in numbers),
                        f"{cost:.0f}" if step else "–",
                    ]
                )
                print(f"# {found[-1]}", flush=True)
                begun = now(torch.device("cpu"))
            ids = text(args.rows, generator)
            logits = model.train()(ids).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return found


if __name__ == "__main__":
    main()

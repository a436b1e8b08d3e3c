"""How much faster is EdgeProbe than one example at a time, for all layers and tasks?

Question: wall time of one observation by ``EdgeProbe`` (12 layers × 3 tasks) over that of the plain method, on the same
sentences, in one process. Goal: at most 0.1, with equal results.

Run: ``python benchmarks/edge_probe.py --threads 2`` with ``LMDYN_DATA`` set (``--smoke`` for seconds, without data)

The model is transformers' ``AlbertForPreTraining``, 12 shared layers of 128 units, with random weights; the sentences
are a sample of ``ewt_propbank`` (tasks pos, constituents, roles) in WordPiece. The plain method goes through layers
and tasks one by one. For each it runs the encoder on one sentence after the other, keeps the layer's mean over the
pieces of each span, and trains ``nn.Linear`` by autograd and Adam on minibatches of a ``DataLoader``, in the order of
examples, with the standardisation and the early stopping of ``EdgeProbe``. It is timed in two parts, forward and
training. A second, less plain method runs the encoder on one sentence after the other once for all layers and tasks
(no goal).

Equal: micro-F1 of each layer and task. Sums in another order (padding, batches of matrices) change activations in the
last digits, which can turn the answer for single spans over; the table gives the greatest difference of micro-F1, and
how many of the probes have exactly the same one. ``--double`` has the model in float64, where this is rarer still.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from common import machine, now, quiet, table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AlbertConfig, AlbertForPreTraining, BertTokenizer, PreTrainedTokenizerFast

from lmdyn.analysis.probing.edge_probes import EdgeClassifier
from lmdyn.analysis.probing.probes import generator
from lmdyn.callbacks import Run
from lmdyn.callbacks.probing.edge_probe import EdgeProbe
from lmdyn.datamodules import GrammarCorpus
from lmdyn.datamodules.corpora.conll import ConllCorpus
from lmdyn.datamodules.spans.spans import SpanCorpus

GOAL = 0.1
TASKS = ("pos", "constituents", "roles")
SPLITS = ("train", "validation", "test")
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokens", nargs=3, type=int, default=[10_000, 4_000, 4_000], help="of the three parts"
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--updates", type=int, default=1000, help="of a probe, at most")
    parser.add_argument("--double", action="store_true", help="the model in float64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.tokens, args.layers, args.updates = [200, 100, 100], 2, 4
    torch.set_num_threads(args.threads)
    quiet()
    run(args)


def run(args: argparse.Namespace) -> None:
    training = EdgeClassifier(max_updates=args.updates, evaluate_every=min(100, args.updates))
    spans = corpus(args.smoke)
    tokenizer: PreTrainedTokenizerFast = spans.tokenizer
    torch.manual_seed(0)
    size = 16 if args.smoke else 128
    model = AlbertForPreTraining(
        AlbertConfig(
            vocab_size=len(tokenizer), embedding_size=size, hidden_size=size, num_hidden_layers=args.layers,
            num_attention_heads=2, intermediate_size=4 * size, max_position_embeddings=512,
        )
    ).eval()  # fmt: skip
    if args.double:
        model.double()
    limits = dict(zip((f"{s}_tokens" for s in SPLITS), args.tokens, strict=True))
    observer = EdgeProbe(tasks=TASKS, classifier=training, **limits)
    observer.probe = spans
    with tempfile.TemporaryDirectory() as folder:
        observer.attach(Run(Path(folder), tokenizer=tokenizer))
    parts = {split: sentences(observer._parts[split].loader) for split in SPLITS}
    warm = next(iter(observer._parts["test"].batches()))
    with torch.no_grad():
        model.albert(warm["input_ids"][:1])

    start = now(CPU)
    ours = observer.observe(model, 0)
    ours_seconds = now(CPU).since(start).wall

    forward_seconds = training_seconds = 0.0
    plain: dict[tuple[str, str], float] = {}
    classes = {task: len(spans.label_names[task]) for task in TASKS}
    for task in TASKS:
        for layer in range(args.layers):
            start = now(CPU)
            features = {split: states(model, parts[split], [layer]) for split in SPLITS}
            forward_seconds += now(CPU).since(start).wall
            start = now(CPU)
            of_layer = {split: x[0] for split, x in features.items()}
            plain[f"layer@{layer}", task] = probe(of_layer, parts, task, classes[task], training)
            training_seconds += now(CPU).since(start).wall
    start = now(CPU)
    for split in SPLITS:
        states(model, parts[split], range(args.layers))
    once_seconds = now(CPU).since(start).wall

    counts = ", ".join(f"{split} {len(parts[split])}" for split in SPLITS)
    print(
        f"sentences: {counts}; {args.layers} layers × {len(TASKS)} tasks of {classes} labels, width {size}, at most "
        f"{args.updates} updates; {args.threads} threads; {machine()}\n"
    )
    f1 = ours[ours["quantity"].eq("f1")]
    gaps = pd.Series(
        [abs(plain[s, t] - v) for s, t, v in zip(f1["site"], f1["task"], f1["value"], strict=True)]
    )
    total = forward_seconds + training_seconds
    rows = [
        ["EdgeProbe", "", "", f"{ours_seconds:.2f}", "", ""],
        line("layer by layer, task by task", forward_seconds, training_seconds, ours_seconds, f"{GOAL}"),
        line("the same, one forward pass for all", once_seconds, training_seconds, ours_seconds, "none"),
    ]
    print(table(["way", "forward, s", "training, s", "both, s", "EdgeProbe over it", "goal"], rows))
    print(
        f"\nmicro-F1: greatest difference {gaps.max():.1e}, the same (1e-6) in {int((gaps < 1e-6).sum())} of "
        f"{len(gaps)}; mean {f1['value'].mean():.4f}; {total / ours_seconds:.1f} times faster"
    )


def line(name: str, forward: float, training: float, ours: float, goal: str) -> list[str]:
    both = forward + training
    return [name, f"{forward:.2f}", f"{training:.2f}", f"{both:.2f}", f"{ours / both:.3f}", goal]


def corpus(smoke: bool) -> SpanCorpus:
    """The sentences, encoded."""
    if smoke:
        grammar = GrammarCorpus(n_train_tokens=500, n_validation_tokens=200, n_test_tokens=200)
        spans = SpanCorpus(grammar, TASKS)
    else:
        data = Path(os.environ["LMDYN_DATA"])
        paths = [
            str(data / "ewt_propbank" / f"en_ewt-{part}.gold_conll") for part in ("train", "dev", "test")
        ]
        spans = SpanCorpus(ConllCorpus(*paths, layout="ewt_propbank"), TASKS)
        spans.tokenizer = BertTokenizer(vocab=str(data / "vocab" / "bert-base-uncased-vocab.txt"))
    spans.setup()
    return spans


def sentences(loader: Any) -> list[dict[str, Tensor]]:
    """The examples that a loader serves, in their order, without padding."""
    found = {}
    for batch in loader:
        for row, number in enumerate(batch["example"].tolist()):
            length = int(batch["attention_mask"][row].sum())
            one = {key: batch[key][row, :length] for key in ("input_ids", "labels")}
            for task in TASKS:
                rows = batch[f"spans_{task}"][row]
                one[task] = rows[rows[:, 4] >= 0]
            found[number] = one
    return [found[number] for number in sorted(found)]


@torch.no_grad()
def states(model: nn.Module, of: Sequence[dict[str, Tensor]], layers: Iterable[int]) -> list[list[Tensor]]:
    """Outputs of some layers on each sentence, by the encoder alone."""
    kept: list[list[Tensor]] = [[] for _ in layers]
    for sentence in of:
        hidden = model.albert(sentence["input_ids"][None], output_hidden_states=True).hidden_states
        for states_of, layer in zip(kept, layers, strict=True):
            states_of.append(hidden[layer + 1][0].float())
    return kept


def probe(
    hidden: dict[str, list[Tensor]], parts: dict[str, list[dict[str, Tensor]]], task: str, classes: int,
    training: EdgeClassifier,
) -> float:  # fmt: skip
    """Test micro-F1 of one probe, as one would write it."""
    pieces = torch.cat([x[s["labels"] >= 0] for x, s in zip(hidden["train"], parts["train"], strict=True)])
    mean, std = pieces.mean(0), pieces.std(0, correction=0)
    inputs, labels = {}, {}
    for split in SPLITS:
        rows, gold = [], []
        for x, sentence in zip(hidden[split], parts[split], strict=True):
            for a, b, c, d, label in sentence[task].tolist():
                first = (x[a:b].mean(0) - mean) / std
                rows.append(first if c < 0 else torch.cat([first, (x[c:d].mean(0) - mean) / std]))
                gold.append(label)
        inputs[split], labels[split] = torch.stack(rows), torch.tensor(gold)
    model = nn.Linear(inputs["train"].shape[1], classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    order = generator(training.seed, "order", task)
    data = TensorDataset(inputs["train"], labels["train"])

    @torch.no_grad()
    def accuracy(split: str) -> float:  # one label a span: micro-F1
        return float((model(inputs[split]).argmax(1) == labels[split]).double().mean())

    best, weights, update, stale = -1.0, model.state_dict(), 0, 0
    while update < training.max_updates and stale < training.patience:
        shuffled = torch.randperm(len(data), generator=order).tolist()
        for x, y in DataLoader(data, training.batch_size, sampler=shuffled):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            update += 1
            if update % training.evaluate_every == 0 or update == training.max_updates:
                found, stale = accuracy("validation"), stale + 1
                if found > best:
                    best, stale = found, 0
                    weights = {name: value.clone() for name, value in model.state_dict().items()}
                if stale == training.patience or update == training.max_updates:
                    break
    model.load_state_dict(weights)
    return accuracy("test")


if __name__ == "__main__":
    main()

"""What does TokenLearning cost, against one forward pass with all logits for each masked word?

Question: time of reconstruction and mask prediction of all words of a sample of sentences, over that of the
one-example-at-a-time method: a sentence at a time, a masked word at a time, logits at all positions. Goals: at most a
half on CPU, at most a tenth on a GPU, at equal results (the same words right).

Run: ``python benchmarks/token_learning.py --threads 1 --reps 3`` (some minutes; ``--smoke`` for seconds)

The model is ``MaskedLanguageModel`` over ALBERT with random weights (12 shared layers, 128 hidden units, 2 heads by
default) and the vocabulary of BERT; the text UD English EWT's development part under ``$LMDYN_DATA``, of which
``--sentences`` are drawn by a fixed seed (``--smoke``: the synthetic grammar and its words). A random model gets next
to nothing right, and equal zeros would say nothing: before it is timed it is trained for ``--updates`` steps on the
very sentences, and the line above the table says how many words both ways get right.

The two ways alternate; ratios are taken pair by pair. The observer's time includes groups and table.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import Seconds, machine, now, quiet, spread, table
from torch import Tensor, nn
from transformers import BertTokenizer

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.words.word_masks import number_words
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.words.token_learning import TokenLearning
from lmdyn.datamodules.corpora.conllu import ConlluCorpus
from lmdyn.datamodules.corpora.examples import ExampleLoader
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.datamodules.spans.spans import SpanCorpus
from lmdyn.models.masked_lm import MaskedLanguageModel

GOALS = {"cpu": 0.5, "cuda": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=60, help="of training before it is timed")
    parser.add_argument(
        "--batch-tokens", type=int, help="of masked copies; the observer's own default if not given"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.sentences, args.layers, args.hidden_size, args.updates, args.reps = 8, 2, 16, 3, 1
    torch.set_num_threads(args.threads)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


def sample(args: argparse.Namespace, folder: Path) -> tuple[ExampleLoader, Any]:
    """Sentences with words, and their tokenizer."""
    if args.smoke:
        corpus: Any = GrammarCorpus(n_train_tokens=600, n_validation_tokens=600, n_test_tokens=50)
        tokenizer = word_tokenizer(corpus.word_counts())
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    else:
        data = Path(os.environ["LMDYN_DATA"])
        treebank = data / "ud_ewt"
        corpus = ConlluCorpus(
            **{
                split: str(treebank / f"en_ewt-ud-{name}.conllu")
                for split, name in {"train": "dev", "validation": "dev"}.items()
            }
        )
        tokenizer = BertTokenizer(vocab=str(data / "vocab" / "bert-base-uncased-vocab.txt"))
    spans = SpanCorpus(corpus, tasks=["pos"])
    spans.tokenizer = tokenizer
    spans.prepare_data()
    spans.setup()
    whole = spans.val_dataloader()
    drawn = torch.randperm(len(whole.examples), generator=torch.Generator().manual_seed(0))
    chosen = [whole.examples[int(i)] for i in drawn[: args.sentences]]
    return ExampleLoader(chosen, label_names=spans.label_names, pad_id=tokenizer.pad_token_id), tokenizer


def train(module: nn.Module, loader: ExampleLoader, mask_id: int, updates: int) -> None:
    """So that some words are right."""
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    random = torch.Generator().manual_seed(0)
    device = next(module.parameters()).device
    batches = [to_device(batch, device) for batch in loader]
    for update in range(updates):
        batch = batches[update % len(batches)]
        here = batch["labels"] >= 0
        masked = here & (torch.rand(here.shape, generator=random) < 0.15).to(device)
        ids = batch["input_ids"].masked_fill(masked, mask_id)
        logits = module(ids, batch["attention_mask"], predict=here).logits
        loss = nn.functional.cross_entropy(logits, batch["labels"][here])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.zero_grad(set_to_none=True)


@torch.no_grad()
def one_at_a_time(
    module: nn.Module, sentences: list[dict[str, Tensor]], mask_id: int, unk_id: int
) -> dict[str, int]:
    """How many known words are right: a forward pass for each sentence and for each masked word."""
    right = {"reconstruction": 0, "prediction": 0}
    for sentence in sentences:
        ids, mask, word = (sentence[key] for key in ("input_ids", "attention_mask", "words"))
        seen = module(ids, mask).logits.argmax(-1)
        for i in sorted(set(word[word >= 0].tolist())):
            at = word == i
            if bool((ids[at] == unk_id).any()):
                continue
            right["reconstruction"] += bool((seen[at] == ids[at]).all())
            best = module(ids.masked_fill(at, mask_id), mask).logits.argmax(-1)
            right["prediction"] += bool((best[at] == ids[at]).all())
    return right


def run(args: argparse.Namespace, folder: Path) -> None:
    device = torch.device(args.device)
    loader, tokenizer = sample(args, folder)
    torch.manual_seed(0)
    config = {
        "embedding_size": min(128, args.hidden_size), "hidden_size": args.hidden_size,
        "intermediate_size": 4 * args.hidden_size, "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
    }  # fmt: skip
    module = MaskedLanguageModel("albert", config, vocab_size=len(tokenizer)).to(device).eval()
    mask_id = int(tokenizer.mask_token_id)
    train(module, loader, mask_id, args.updates)
    observer = TokenLearning(by=[], batch_tokens=args.batch_tokens)
    observer.probe = loader
    observer.attach(Run(folder, tokenizer=tokenizer))
    single = ExampleLoader(loader.examples, batch_tokens=1, pad_id=tokenizer.pad_token_id)
    sentences = [to_device(batch, device) for batch in single]
    words = sum(len(number_words(batch["words"])) for batch in sentences)

    def observed() -> dict[str, int]:
        rows = observer.observe(module, 0).set_index("quantity")["value"]
        return {
            quantity: round(rows[quantity] * rows[count])
            for quantity, count in (("reconstruction", "words"), ("prediction", "masked_words"))
        }

    def naive() -> dict[str, int]:
        with observing(module):
            return one_at_a_time(module, sentences, mask_id, int(tokenizer.unk_token_id))

    ways = {"one at a time": naive, "TokenLearning": observed}
    observed()  # warms up
    one_at_a_time(module, sentences[:2], mask_id, int(tokenizer.unk_token_id))
    times: dict[str, list[Seconds]] = {way: [] for way in ways}
    results: dict[str, dict[str, int]] = {}
    for _ in range(args.reps):
        for way, function in ways.items():
            start = now(device)
            results[way] = function()
            times[way].append(now(device).since(start))
    if results["one at a time"] != results["TokenLearning"]:
        raise SystemExit(f"the two ways differ in which words are right: {results}")
    print(
        f"{words} words of {len(sentences)} sentences; ALBERT, {args.layers} layers, width {args.hidden_size}, "
        f"vocabulary {len(tokenizer)}; both ways get right: {results['TokenLearning']}; {args.device}, "
        f"{args.threads} threads; {machine()}\n"
    )
    rows = []
    for clock in ("wall", "cpu"):
        seconds = [[getattr(s, clock) for s in times[way]] for way in ways]
        ratios = [ours / theirs for theirs, ours in zip(*seconds, strict=True)]
        cells = (spread(values) for values in (*seconds, ratios))
        rows.append([clock, *cells, str(GOALS.get(device.type, ""))])
    print(table(["clock", *(f"{way}, s" for way in ways), "ratio", "goal"], rows))


if __name__ == "__main__":
    main()

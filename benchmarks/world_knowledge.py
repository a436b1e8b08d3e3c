"""What does asking a model for facts cost, against one question at a time?

Question: time to ask all facts by ``WorldKnowledge`` (batches of questions of like length, the vocabulary projection
only at the masks, the table of records included), over that of the plain method: a forward pass a fact, with the logits
of all positions. Goal: at most 0.5 on CPU, at most 0.1 on a GPU.

Run: ``python benchmarks/world_knowledge.py --threads 2 --reps 5`` with ``LMDYN_DATA`` set (minutes; ``--smoke`` for
seconds, on facts of the synthetic grammar)

The model is ALBERT-mini (12 shared layers, 2 heads, hidden size 128) with random weights, a bias towards frequent
answers, and the vocabulary of ALBERT (30,000 pieces); the facts are T-REx in the 25 relations of Chiang et al. 2020,
table 8. The plain method is timed on a sample of facts, evenly spread, and its time taken for all of them in
proportion. Both ways must answer the same: for each fact of the sample the first piece of the vocabulary, and whether
it is right; where two pieces lie within 1e-4 of each other the first may differ by rounding, which is counted.

The two ways alternate. Ratios are taken pair by pair; seconds are of the clock on the wall, and of all threads on the
CPU, which other processes disturb less.
"""

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Seconds, machine, now, quiet, spread, table
from transformers import AlbertTokenizer

from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.words.world_knowledge import WorldKnowledge
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.datamodules.facts.facts import FactCorpus, GrammarFacts, TrexFacts
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.models.masked_lm import MaskedLanguageModel

GOALS = {"cpu": 0.5, "cuda": 0.1}
TIE = 1e-4


def albert_tokenizer(vocabulary: Path) -> AlbertTokenizer:
    """ALBERT's, from the pieces and scores that SentencePiece exports beside its model."""
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    pieces = [(piece, float(score)) for piece, _, score in (line.rpartition("\t") for line in lines)]
    return AlbertTokenizer(vocab=pieces)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--sample", type=int, default=500, help="facts asked one at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.layers, args.hidden_size, args.sample, args.reps, args.batch_tokens = 2, 16, 20, 1, 256
    torch.set_num_threads(args.threads)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


def facts(args: argparse.Namespace) -> tuple[FactCorpus, Any]:
    """The questions and the tokenizer."""
    if args.smoke:
        grammar = GrammarCorpus(n_facts=60)
        tokenizer = word_tokenizer(dict.fromkeys(grammar.grammar.vocabulary, 1))
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
        return FactCorpus(GrammarFacts(grammar), batch_tokens=args.batch_tokens), tokenizer
    if "LMDYN_DATA" not in os.environ:
        raise SystemExit("the facts are read from $LMDYN_DATA/trex: set LMDYN_DATA, or try --smoke")
    tokenizer = albert_tokenizer(Path(os.environ["LMDYN_DATA"]) / "vocab" / "albert_spiece.vocab")
    return FactCorpus(TrexFacts(), batch_tokens=args.batch_tokens), tokenizer


def run(args: argparse.Namespace, folder: Path) -> None:
    device = torch.device(args.device)
    corpus, tokenizer = facts(args)
    torch.manual_seed(0)
    sizes = {
        "embedding_size": min(128, args.hidden_size), "hidden_size": args.hidden_size,
        "intermediate_size": 4 * args.hidden_size, "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
    }  # fmt: skip
    module = MaskedLanguageModel("albert", config=sizes, vocab_size=len(tokenizer)).to(device).eval()
    observer = WorldKnowledge(probe=corpus)
    observer.attach(Run(folder, tokenizer=tokenizer))
    loader: Any = observer.probe_set.loader
    examples = loader.examples
    answers = [int(example["labels"].max()) for example in examples]
    with torch.no_grad():  # so that some answers of random weights are right
        for answer, _ in Counter(answers).most_common(20):
            module.model.predictions.bias[answer] += 0.5
    sample = np.unique(np.linspace(0, len(examples) - 1, min(args.sample, len(examples))).astype(int))
    candidates = torch.tensor(loader.candidates, device=device)

    @torch.no_grad()
    def one_at_a_time() -> tuple[list[int], list[bool], list[float]]:
        predictions, hits, gaps = [], [], []
        for i in sample:
            ids = torch.from_numpy(examples[i]["input_ids"])[None].to(device)
            labels = torch.from_numpy(examples[i]["labels"])
            at = int((labels >= 0).nonzero())
            logits = module(ids).logits[0, at]
            best = int(logits.argmax())
            among = int(candidates[logits[candidates].argmax()])
            predictions.append(best)
            hits.append(among == int(labels[at]))
            gaps.append(float(logits.topk(2).values.diff().abs()))
        return predictions, hits, gaps

    print(
        f"{len(examples)} facts, {sum(len(e['input_ids']) for e in examples)} positions in {len(loader)} batches; "
        f"{len(tokenizer)} pieces, {len(candidates)} candidates; ALBERT of {args.layers} layers, hidden size "
        f"{args.hidden_size}; sample of {len(sample)}; {args.device}, {args.threads} threads; {machine()}\n"
    )
    observer.observe(module, 0)  # warms up, as does this
    predictions, hits, gaps = one_at_a_time()
    ours: list[Seconds] = []
    plain: list[Seconds] = []
    for _ in range(args.reps):
        start = now(device)
        observation = observer.observe(module, 0)
        middle = now(device)
        one_at_a_time()
        ours.append(middle.since(start))
        plain.append(now(device).since(middle))

    rows = observation[observation["quantity"].eq("hit")]
    pieces = tokenizer.convert_ids_to_tokens(predictions)
    found = rows["prediction"].to_numpy()[sample]
    differ = [i for i, piece in enumerate(pieces) if piece != found[i]]
    ties = sum(gaps[i] < TIE for i in differ)
    known = [p == answers[i] for p, i in zip(predictions, sample, strict=True)]
    wrong = sum(
        known[i] != bool(rows["value"].to_numpy()[s]) for i, s in enumerate(sample) if i not in differ
    )
    print(
        f"same first piece for {len(sample) - len(differ)} of {len(sample)} facts; {ties} others are ties within "
        f"{TIE}, {len(differ) - ties} differ; {wrong} hits differ; {sum(known)} known, {sum(hits)} among candidates\n"
    )
    if len(differ) > ties or wrong:
        raise SystemExit("the two ways do not answer the same")
    lines = []
    for clock in ("wall", "cpu"):
        batched = [getattr(s, clock) for s in ours]
        single = [getattr(s, clock) * len(examples) / len(sample) for s in plain]
        ratios = [a / b for a, b in zip(batched, single, strict=True)]
        lines.append(
            [
                clock,
                spread(batched, "{:.2f}"),
                spread(single, "{:.1f}"),
                spread(ratios),
                f"{GOALS[device.type]}",
            ]
        )
    print(table(["clock", "WorldKnowledge (s)", "one at a time, all facts (s)", "ratio", "goal"], lines))


if __name__ == "__main__":
    main()

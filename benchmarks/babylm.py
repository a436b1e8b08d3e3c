"""What do the zero-shot tasks of the BabyLM challenge cost a checkpoint?

Question: by count, which holds on any machine: tokens through the model in ``lmdyn babylm``, over the necessary ones,
which are the different beginnings of an item's options (of reading times: of all texts); goal: at most 1.2. How often
the weights of a checkpoint are read; goal: once. Two tokenizers: one puts a token before a text; the other does not, so
that the two forms of each score need two inputs, each of which is counted as necessary.

By the clock, in whole processes, in rounds that alternate: ``lmdyn babylm`` of one checkpoint and of three; minicons in
one process that loads each checkpoint once, in batches of 64 texts in the order of the files (skipped if it is not
installed); and one process and one load for each task, as the challenge's scripts: batches of 64 items, one option
after the other, reading times and ages of acquisition one text at a time. A further checkpoint costs half of what three
cost more than one. These two compute one form of each score. The scores of all sides are compared.

The model is a GPT-2 of random weights; the texts are drawn, in the challenge's files, each task with a share of its
items.

Run: ``python benchmarks/babylm.py [--reps 5]`` (``--smoke`` for seconds)
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from tables import machine, spread, table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

SIZES = {
    "blimp": 13_400,
    "supplement": 250,
    "ewok": 1_100,
    "entity_tracking": 2_238,
    "reading": 1_726,
    "aoa": 8_005,
}
"""Items of the fast sets, and words in contexts; rows of the reading times."""
ALONE = ("reading", "aoa")
BATCH, MORE, POSITIONS = 64, 3, 512
ABOUT = {True: "puts a token before a text", False: "puts no token before a text"}
NAMES = {"tasks": "a process for each task"}
TIMES = ["RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound", "self_paced_reading_time"]

Item = list[tuple[str, str]]
"""Options: what precedes each, and what is scored."""


# Texts and models -------------------------------------------------------------------------------------------


class Words:
    """Words of syllables, drawn by Zipf's law."""

    def __init__(self, types: int = 2_000) -> None:
        self.random = np.random.default_rng(0)
        syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
        self.words = [
            "".join(self.random.choice(syllables, self.random.integers(1, 4))) for _ in range(types)
        ]
        self.shares = 1 / (np.arange(types) + 2.7)
        self.shares /= self.shares.sum()

    def draw(self, number: int) -> list[str]:
        """Some words."""
        return [self.words[i] for i in self.random.choice(len(self.words), number, p=self.shares)]

    def between(self, low: int, high: int) -> list[str]:
        """From so many to so many words."""
        return self.draw(int(self.random.integers(low, high + 1)))

    def pair(self, low: int, high: int) -> tuple[str, str]:
        """Two sentences that differ in one word, anywhere."""
        one = self.between(low, high)
        other, at = list(one), self.random.integers(len(one))
        while other[at] == one[at]:
            other[at] = self.draw(1)[0]
        return " ".join(one) + ".", " ".join(other) + "."


def write_data(root: Path, share: float) -> None:
    """The challenge's folder, with a share of each task's items."""
    words, fast = Words(), root / "fast_eval"
    number = {name: max(4, round(share * size)) for name, size in SIZES.items()}

    def write(path: str, rows: list[dict[str, Any]]) -> None:
        (fast / path).parent.mkdir(parents=True, exist_ok=True)
        (fast / path).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def pairs(items: int, **more: str) -> list[dict[str, Any]]:
        drawn = [words.pair(6, 12) for _ in range(items)]
        return [{"sentence_good": good, "sentence_bad": bad, **more} for good, bad in drawn]

    for kind in range(4):
        name = f"paradigm_{kind}"
        about = {"UID": name, "field": "syntax", "linguistics_term": "agreement"}
        write(f"blimp_fast/{name}.jsonl", pairs(number["blimp"] // 4, **about))
    write("supplement_fast/supplement.jsonl", pairs(number["supplement"]))
    worlds = []
    for _ in range(number["ewok"]):
        names = ("Context1", "Context2", "Target1", "Target2")
        worlds.append(
            {**dict(zip(names, words.pair(8, 14) + words.pair(4, 7), strict=True)), "Domain": "physical"}
        )
    write("ewok_fast/physical.jsonl", worlds)
    boxes = []
    for _ in range(number["entity_tracking"]):
        held = [f"Box {i} contains the " + " and the ".join(words.between(1, 2)) for i in range(7)]
        moves = [
            f"Move the {words.draw(1)[0]} from Box {i} to Box {i + 1}."
            for i in range(words.random.integers(6))
        ]
        options = [" the " + " and the ".join(words.between(1, 3)) + "." for _ in range(5)]
        prefix = " ".join([", ".join(held) + ".", *moves, "Box 1 contains"])
        boxes.append({"input_prefix": prefix, "options": options, "numops": len(moves)})
    write("entity_tracking_fast/regular.jsonl", boxes)
    rows: list[dict[str, Any]] = []
    while len(rows) < max(60, number["reading"]):
        text = words.between(8, 16)
        rows += [
            {"item": " ".join(text[:i]), "word": text[i], "length": len(text[i]), "context_length": i,
             "prev_item": " ".join(text[: i - 1]), "prev_word": text[i - 1], "prev_length": len(text[i - 1]),
             "Subtlex_log10": words.random.random(), **{name: 200 + 99 * words.random.random() for name in TIMES}}
            for i in range(1, len(text))
        ]  # fmt: skip
    (fast / "reading").mkdir()
    pd.DataFrame(rows).to_csv(fast / "reading" / "reading_data.csv", index=False)
    chosen = dict.fromkeys(word for word in words.words if len(word) > 1)
    known = list(chosen)[: max(1, number["aoa"] // 20)]
    contexts = {word: [{"context": " ".join(words.between(3, 10))} for _ in range(20)] for word in known}
    (root / "full_eval" / "aoa").mkdir(parents=True)
    (root / "full_eval" / "aoa" / "cdi_childes.json").write_text(json.dumps(contexts))


def read_tasks(root: Path) -> dict[str, list[Item]]:
    """The items of each task, in the order of the files."""
    fast = root / "fast_eval"

    def lines(name: str) -> list[dict[str, Any]]:
        paths = sorted((fast / f"{name}_fast").glob("*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    found: dict[str, list[Item]] = {
        name: [[("", row["sentence_good"]), ("", row["sentence_bad"])] for row in lines(name)]
        for name in ("blimp", "supplement")
    }
    found["ewok"] = [
        [(row[context], f" {row['Target1']}") for context in ("Context1", "Context2")]
        for row in lines("ewok")
    ]
    found["entity_tracking"] = [
        [(row["input_prefix"], of) for of in row["options"]] for row in lines("entity_tracking")
    ]
    times = pd.read_csv(fast / "reading" / "reading_data.csv")
    found["reading"] = [
        [(context, f" {word}")] for context, word in zip(times["item"], times["word"], strict=True)
    ]
    contexts = json.loads((root / "full_eval" / "aoa" / "cdi_childes.json").read_text())
    found["aoa"] = [[(each["context"], f" {word}")] for word, of in contexts.items() for each in of]
    return found


def write_models(folder: Path, number: int, starts: bool, small: bool) -> None:
    """GPT-2s of random weights, as checkpoints; ``starts``: their tokenizer puts a token before a text."""
    words = Words()
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([" ".join(words.draw(1000)) for _ in range(200)], trainer)
    if starts:
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    layers, units = (1, 32) if small else (4, 256)
    for seed in range(number):
        torch.manual_seed(seed)
        sizes = {"vocab_size": len(tokenizer), "n_positions": POSITIONS, "n_layer": layers, "n_embd": units}
        config = GPT2Config(**sizes, n_head=4, bos_token_id=0, eos_token_id=1, pad_token_id=2)
        GPT2LMHeadModel(config).save_pretrained(folder / f"chck_{seed + 1}M")
        tokenizer.save_pretrained(folder / f"chck_{seed + 1}M")


# The other sides, in processes of their own ------------------------------------------------------------------


def parts(found: list[Any]) -> Iterator[list[Any]]:
    """Batches, in order."""
    return (found[i : i + BATCH] for i in range(0, len(found), BATCH))


def whole_texts(items: list[Item]) -> list[str]:
    """The texts of reading times that begin no other one."""
    texts = [prefix + option for ((prefix, option),) in items]
    return [
        text for text, after in zip(texts, [*texts[1:], ""], strict=True) if not after.startswith(f"{text} ")
    ]


def by_minicons(root: Path, folders: list[Path]) -> dict[str, list[float]]:
    """Scores of the last checkpoint: batches of texts; sentences of reading times once."""
    from minicons import scorer

    found: dict[str, list[float]] = {}

    def total(scores: torch.Tensor) -> float:
        return scores.sum(0).item()

    for folder in folders:
        model, found = scorer.IncrementalLMScorer(str(folder), "cpu"), {}
        for name, items in read_tasks(root).items():
            if name == "reading":
                for texts in parts(whole_texts(items)):
                    model.token_score(texts, surprisal=True)
                continue
            found[name] = []
            for batch in parts([option for item in items for option in item]):
                before, after = (list(column) for column in zip(*batch, strict=True))
                if any(before):
                    found[name] += model.conditional_score(before, after, separator="", reduction=total)
                else:
                    found[name] += model.sequence_score(after, reduction=total)
    return found


def by_task(root: Path, folders: list[Path], task: str) -> dict[str, list[float]]:
    """Scores of the last checkpoint in one task: batches of items, or one text at a time."""
    items = read_tasks(root)[task]
    found = np.zeros(0)
    for folder in folders:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
        with torch.no_grad():
            if task == "reading":
                found = np.array([[word_by_pieces(model, tokenizer, *item[0])] for item in items])
                for item in items:  # the word before has a pass of its own
                    before, _, word = item[0][0].rpartition(" ")
                    if before:
                        word_by_pieces(model, tokenizer, before, f" {word}")
                continue
            batches = [[item] for item in items] if task in ALONE else parts(items)
            found = np.concatenate([
                np.stack([sums(model, tokenizer, list(options)) for options in zip(*batch, strict=True)], axis=1)
                for batch in batches
            ])  # fmt: skip
    return {task: found.ravel().tolist()}


def sums(model: Any, tokenizer: Any, options: Item) -> np.ndarray:
    """Log-probabilities of options, each after its prefix, in one batch."""
    texts = [prefix + option for prefix, option in options]
    batch = tokenizer(texts, return_tensors="pt", padding=True, return_offsets_mapping=True)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    begin = torch.tensor([len(prefix) for prefix, _ in options])
    scored = (batch["offset_mapping"][..., 1] > begin[:, None]) & mask.bool()
    logits = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1]).logits
    values = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return (values * scored[:, 1:]).sum(1).numpy()


def word_by_pieces(model: Any, tokenizer: Any, text: str, word: str) -> float:
    """Log-probability of a word, each of whose pieces has a pass of its own."""
    found = 0.0
    for piece in tokenizer(word, add_special_tokens=False)["input_ids"]:
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
        found += logits.log_softmax(-1)[piece].item()
        text += tokenizer.decode([piece])
    return found


# By count -----------------------------------------------------------------------------------------------------


def necessary(items: list[Item], tokenizer: Any, start: list[int]) -> int:
    """Tokens that a causal model must read: different beginnings, of each item on its own."""
    found = 0
    for item in items:
        rows = [[*start, *tokenizer(before + option)["input_ids"]] for before, option in item]
        found += len({tuple(row[:end]) for row in rows for end in range(1, len(row))})
    return found


def counted(root: Path, place: Path, starts: bool) -> list[list[str]]:
    """Rows of the table: tokens through the model by task, in ``lmdyn babylm``; reads of the weights."""
    import safetensors

    from lmdyn.callbacks import Choices, Reading
    from lmdyn.cli.__main__ import main as lmdyn

    tokens: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    doing = [""]

    def count(module: torch.nn.Module, args: tuple[Any, ...], _: Any) -> None:
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings != POSITIONS:
            tokens[doing[0]] += args[0].numel()

    def named(measure: Any) -> Any:
        def call(observer: Any, *args: Any) -> Any:
            doing[0] = observer.name.removesuffix("_exact").removesuffix("_fast")
            try:
                return measure(observer, *args)
            finally:
                doing[0] = ""

        return call

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        reads[Path(file).parent.name] += 1
        return real(file, *args, **kwargs)

    real = safetensors.safe_open
    handle = torch.nn.modules.module.register_module_forward_hook(count)
    with contextlib.ExitStack() as stack:
        for kind in (Choices, Reading):
            stack.enter_context(mock.patch.object(kind, "measure", named(kind.measure)))
        for read in ("safetensors.torch.safe_open", "transformers.modeling_utils.safe_open"):
            stack.enter_context(mock.patch(read, opened))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        lmdyn(["babylm", str(place / "series"), "--data", str(root), "--out", str(place), "--device", "cpu"])
    handle.remove()
    tokenizer = AutoTokenizer.from_pretrained(place / "series" / "chck_1M")
    rows, all_read, all_needed = [], 0, 0
    for name, items in read_tasks(root).items():
        whole = [[("", text)] for text in whole_texts(items)] if name == "reading" else items
        forms = [[]] if starts else [[], [tokenizer.bos_token_id]]
        needed = MORE * sum(necessary(whole, tokenizer, form) for form in forms)
        all_read, all_needed = all_read + tokens[name], all_needed + needed
        rows.append([name, f"{needed // MORE:,}", f"{tokens[name] / needed:.3f}"])
    all_read += tokens[""]
    rows.append(["all, with the calls that find out how the model answers", f"{all_needed // MORE:,}",
                 f"**{all_read / all_needed:.3f}**"])  # fmt: skip
    loads = ", ".join(str(reads[f"chck_{i + 1}M"]) for i in range(MORE))
    rows.append([f"reads of the weights of {MORE} checkpoints", "", loads])
    return [[ABOUT[starts], *row] for row in rows]


# By the clock -------------------------------------------------------------------------------------------------


def process(command: list[str]) -> np.ndarray:
    """Seconds of a process, of the clock and of the CPU."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return np.array([wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime])


class Sides:
    """The three ways of scoring, as processes."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.series, self.out = root, place / "series", place
        self.run = 0
        self.names = ["lmdyn", *(["minicons"] if importlib.util.find_spec("minicons") else []), "tasks"]

    def seconds(self, name: str, number: int) -> np.ndarray:
        """Seconds of so many checkpoints."""
        if name == "lmdyn":
            self.run += 1
            words = [
                "-m",
                "lmdyn.cli",
                "babylm",
                str(self.series),
                "--data",
                str(self.root),
                "--device",
                "cpu",
            ]
            chosen = [] if number == MORE else ["--checkpoints", str(self.series / "chck_1M")]
            return process([sys.executable, *words, "--out", str(self.out / f"lmdyn_{self.run}"), *chosen])
        folders = [str(self.series / f"chck_{i + 1}M") for i in range(number)]
        tasks = [""] if name == "minicons" else list(SIZES)
        return sum(
            process([
                sys.executable, __file__, "--side", name, "--task", task, "--data", str(self.root),
                "--out", str(self.out / f"{name}_{task}_{number}.json"), *folders,
            ])
            for task in tasks
        )  # fmt: skip

    def largest_difference(self, starts: bool) -> dict[str, float]:
        """Between the other sides' scores of the first checkpoint and lmdyn's in the same form."""
        found = {}
        folder = next((self.out / "lmdyn_1").glob("*/observed_causal")) / "observations"
        for name in self.names[1:]:
            others: dict[str, list[float]] = {}
            for path in self.out.glob(f"{name}_*_1.json"):
                others |= json.loads(path.read_text())
            found[name] = 0.0
            for task in others.keys() - {"reading"}:
                observed = folder / (
                    (task if task == "aoa" else f"{task}_fast") + ("" if starts else "_exact")
                )
                rows = pd.read_parquet(observed)
                own = rows.loc[rows["quantity"] == "log_probability", "value"].to_numpy(float)
                found[name] = max(found[name], float(np.abs(own - np.array(others[task])).max()))
        return found


def timed(root: Path, place: Path, starts: bool, reps: int) -> list[list[str]]:
    """Rows of the table, of rounds in which the sides alternate."""
    sides = Sides(root, place)
    took: dict[tuple[str, int], list[np.ndarray]] = {}
    for turn in range(reps):
        order = [(name, n) for name in sides.names for n in ((1,) if name == "tasks" else (1, MORE))]
        for side in order if turn % 2 == 0 else order[::-1]:
            took.setdefault(side, []).append(sides.seconds(*side))
    differences = sides.largest_difference(starts)
    one = {name: np.array(took[name, 1]) for name in sides.names}
    more = {
        name: one[name] if name == "tasks" else (np.array(took[name, MORE]) - one[name]) / (MORE - 1)
        for name in sides.names
    }
    rows = []
    for name in sides.names:
        for what, of in (("one checkpoint", one), ("a further checkpoint", more)):
            ratios = ["", ""] if name == "lmdyn" else [
                spread((of[name][:, i] / of["lmdyn"][:, i]).tolist(), "{:.2f}") for i in (1, 0)
            ]  # fmt: skip
            rows.append([
                NAMES.get(name, name), what,
                *(spread(of[name][:, i].tolist(), "{:.1f}") for i in (1, 0)), *ratios,
                f"{differences[name]:.0e}" if name in differences else "",
            ])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.05, help="share of each task's items")
    parser.add_argument(
        "--starts", type=int, nargs="*", default=[1, 0], help="tokenizers whose clock is read"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    parser.add_argument("--side", choices=["minicons", "tasks"], help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("folders", type=Path, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if args.side:
        found = (
            by_minicons(args.data, args.folders)
            if args.side == "minicons"
            else by_task(args.data, args.folders, args.task)
        )
        args.out.write_text(json.dumps(found))
        return
    if args.smoke:
        args.reps, args.share, args.starts = 1, 0.001, [0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data", args.share)
        print(machine())
        rows = []
        for starts in (True, False):  # counts are those of a model of any size
            write_models(folder / f"small_{starts}" / "series", MORE, starts, small=True)
            rows += counted(folder / "data", folder / f"small_{starts}", starts)
        print(
            table(["tokenizer", "task", "necessary tokens a checkpoint", "read / necessary"], rows),
            flush=True,
        )
        for starts in args.starts:
            write_models(folder / f"{starts}" / "series", MORE, starts, small=args.smoke)
            rows = timed(folder / "data", folder / f"{starts}", starts, args.reps)
            head = [
                "side",
                "seconds of",
                "CPU",
                "wall",
                "CPU / lmdyn's",
                "wall / lmdyn's",
                "largest difference",
            ]
            print(f"\n{ABOUT[starts]}\n\n{table(head, rows)}", flush=True)


if __name__ == "__main__":
    main()

"""The BabyLM challenge: its zero-shot tasks over the checkpoints of a model, and the files of its pipeline."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import yaml
from transformers import AutoTokenizer

from lmdyn import datamodules
from lmdyn.analysis.words.choices import chosen_options
from lmdyn.analysis.words.reading import reading_fit
from lmdyn.callbacks.words.reading import OF_WORD
from lmdyn.cli.analyze import analyze
from lmdyn.cli.parsing.shipped import shipped_files
from lmdyn.cli.replay.subject import Subject
from lmdyn.datamodules.files.text_files import expand_paths
from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.hub_checkpoints import HubCheckpoints
from lmdyn.runs.store import ObservationStore
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)

Backend = Literal["causal", "mlm", "mntp", "enc_dec_mask", "enc_dec_prefix"]

_EXACT = "_exact"  # ends the name of an observer that reads no token before a text


class _Task(NamedTuple):
    """What the pipeline calls a task: in folders, and in the file for submission; what its predictions are."""

    folder: str
    key: str
    predicts: Literal["text", "option"]


_TASKS = {
    "blimp": _Task("blimp", "blimp", "option"),
    "supplement": _Task("blimp", "blimp_supplement", "option"),
    "ewok": _Task("ewok", "ewok", "text"),
    "entity": _Task("entity_tracking", "entity_tracking_filtered", "option"),
    "comps": _Task("comps", "comps", "text"),
}
"""Tasks by the first word of their observers' names."""


def babylm(
    model: str,
    *,
    checkpoints: str | None,
    revisions: str | None,
    backend: Backend,
    out: Path,
    device: str,
    command: Sequence[str],
) -> Path:
    """Observe the tasks whose data are there, each checkpoint loaded once, and write the pipeline's files.

    Args:
        model: folder of checkpoints, or name of a hub model.
        checkpoints: as of :func:`~lmdyn.cli.analyze.analyze`.
        revisions: likewise; by default ``chck_*`` of a hub model.
        backend: how texts are scored.
        out: folder that receives the folder of the model.
        device: device on which to observe.
        command: words of the command line, for provenance.

    Returns:
        The folder of the model, named as the pipeline names it: up to the last dot.

    Raises:
        FileNotFoundError: if no data or no checkpoint is there.
    """
    folder = out / Path(model).stem
    observed = folder / f"observed_{backend}"
    if revisions is None and checkpoints is None and not Path(model).exists():
        revisions = "chck_*"
    subject = Subject(model, checkpoints, revisions, observed)
    tokenizer = AutoTokenizer.from_pretrained(subject.folder / "tokenizer" if subject.own else subject.first)
    exact = backend == "causal" and not _begins_texts(tokenizer)
    entries = list(_observers(backend, folder, exact=exact))
    if not entries:
        raise FileNotFoundError(
            "the data of all tasks are missing: set BABYLM_DATA, or --data, to the folder with fast_eval and full_eval"
        )
    settings = folder / f"observers_{backend}.yaml"
    text = yaml.safe_dump({"trainer": {"callbacks": entries}}, sort_keys=False)
    write_file(settings, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
    analyze(
        model,
        checkpoints=checkpoints,
        revisions=revisions,
        configs=[settings],
        out=observed,
        scheduled=True,
        device=device,
        command=command,
    )
    paths = subject.paths
    names = {
        step: (paths.model(step)[1] if isinstance(paths, HubCheckpoints) else paths[step].stem) or "main"
        for step in paths
    }
    _Results(folder, backend, names if len(names) > 1 else dict.fromkeys(names, "main")).write(entries)
    return folder


def _begins_texts(tokenizer: Any) -> bool:
    """Return whether a tokenizer itself puts a token before a text."""
    return bool(tokenizer("a").input_ids[0] != tokenizer("a", add_special_tokens=False).input_ids[0])


def _observers(backend: Backend, folder: Path, *, exact: bool) -> Iterator[dict[str, Any]]:
    """Yield the configured observers whose data are there; if ``exact``, also without a token before a text."""
    for entry in read_yaml(shipped_files()["babylm/zero_shot"])["trainer"]["callbacks"]:
        init = entry["init_args"]
        data = init["probe"]["init_args"]
        try:
            path, *_ = expand_paths([data["files"]], "*")
        except FileNotFoundError as error:
            log.warning("lmdyn leaves out %s: %s", init["name"], error)
            continue
        if init["name"] == "aoa":
            data["files"] = str(_contexts(path, folder / "aoa.jsonl"))
        init["scoring"] = "masked" if backend == "mlm" else backend
        yield entry
        if exact:
            yield {**entry, "init_args": {**init, "name": init["name"] + _EXACT, "start": ""}}


def _contexts(path: Path, rows: Path) -> Path:
    """Write the contexts of the words of a file, {word: [{"context": …}, …]}, as rows; return their path."""
    try:
        found = [
            json.dumps({"word": word, "context": each["context"].strip()})
            for word, contexts in json.loads(path.read_text(encoding="utf-8")).items()
            for each in contexts
            if len(word) > 1
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path}: expected {{word: [{{"context": text}}, …]}} ({error!r})') from error
    write_file(rows, lambda unfinished: unfinished.write_text("\n".join(found) + "\n", encoding="utf-8"))
    return rows


class _Results:
    """The files of the pipeline, from observations.

    Args:
        folder: folder of the model.
        backend: the pipeline's name for how texts were scored.
        names: the pipeline's name for each checkpoint, by step.
    """

    def __init__(self, folder: Path, backend: Backend, names: Mapping[int, str]) -> None:
        self.folder = folder
        self.backend = backend
        self.names = names
        keys = [*(task.key for task in _TASKS.values()), "reading", "aoa_surprisals", "aoa"]
        self.submitted: dict[str, Any] = dict.fromkeys(keys)
        self.surprisals: list[dict[str, Any]] = []
        self.fast: dict[str, list[dict[str, float]]] = {}
        self.scores: list[dict[str, Any]] = []

    def write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write predictions and reports of each task, the file for submission, and a table of all scores."""
        settings = {entry["init_args"]["name"]: entry for entry in entries}
        for name, entry in settings.items():
            if name.endswith(_EXACT):
                continue
            source = name + _EXACT if name + _EXACT in settings else name
            write = {"aoa": self._acquisition, "reading": self._reading}.get(name, self._choices)
            probe = entry["init_args"]["probe"]
            data = getattr(datamodules, probe["class_path"])(**probe["init_args"])
            data.setup("fit")
            last = max(self.names)  # of an earlier command, the full sets may be observed elsewhere too
            for step in self._store(name).steps():
                if step == last or (step in self.names and _is_fast(name)):
                    write(name, source, step, data)
        self._write(f"all_full_preds_and_fast_scores_{self.backend}.json", {
            **self.submitted, "glue": None, "fast_eval_results": self.fast,
        })  # fmt: skip
        table = pd.DataFrame(self.scores)
        path = self.folder / f"scores_{self.backend}.csv"
        write_file(path, lambda unfinished: table.to_csv(unfinished, index=False, float_format="%.6g"))
        log.info("lmdyn wrote the pipeline's scores and the corrected scores: %s", path)

    def _store(self, name: str) -> ObservationStore:
        return ObservationStore(self.folder / f"observed_{self.backend}" / "observations" / name)

    def _write(self, path: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        write_file(self.folder / path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))

    def _place(self, name: str, step: int) -> tuple[str, str]:
        """Return the checkpoint's name for an observer's data, and the folder of its results."""
        checkpoint = self.names[step] if _is_fast(name) else "main"
        return checkpoint, f"{checkpoint}/zero_shot/{self.backend}"

    def _choices(self, name: str, source: str, step: int, data: Any) -> None:
        task = _TASKS[name.split("_")[0]]
        checkpoint, place = self._place(name, step)
        rows = self._store(source).read(steps=[step], quantities=["log_probability"])
        keys = ["group", "item", "option"]
        options = data.choices.merge(rows[[*keys, "value"]], on=keys, validate="1:1")
        scores = options["value"].to_numpy(float)
        items = pd.factorize(options["item"])[0]
        picked = options[chosen_options(scores, items, "draw") > 0].copy()
        for column in ("group", "item") if name == "comps" else ():  # of files comps_wugs_dist-before.jsonl
            picked[column] = picked[column].str.removeprefix("comps_").str.replace("-", "_")
        said = [
            text[begin if task.predicts == "option" else 0 :]
            for text, begin in zip(picked["text"], picked["begin"], strict=True)
        ]
        predictions = {
            str(group): {"predictions": of[["id", "pred"]].to_dict("records")}
            for group, of in picked.assign(id=picked["item"], pred=said).groupby("group", sort=False)
        }
        accuracy = {
            str(g): float(of) for g, of in picked.groupby("group", sort=False)["right"].mean().items()
        }
        mean = _mean(accuracy, splits=task.key.startswith("entity"))
        place = f"{place}/{task.folder}/{name}"
        self._write(f"{place}/predictions.json", predictions)
        lines = ["TEMPERATURE: 1.00", "", "### UID ACCURACY"]
        lines += [f"{group}: {100 * value:.2f}" for group, value in accuracy.items()]
        lines += ["", "### AVERAGE ACCURACY", f"{100 * mean:.2f}", ""]
        self._write(f"{place}/best_temperature_report.txt", "\n".join(lines) + "\n")
        if _is_fast(name):  # the pipeline compares EWoK's texts with options, which never agree
            counted = dict.fromkeys(accuracy, 0.0) if task.key == "ewok" else accuracy
            self.fast.setdefault(task.key, []).append(counted)
        else:
            self.submitted[task.key] = predictions
        own = self._store(name).read(steps=[step], quantities=["accuracy"])
        own = own[own["group"] != ""]  # in the order of the groups
        corrected = dict(zip(accuracy, own["value"].astype(float), strict=True))
        corrected[""] = _mean(corrected, splits=task.key.startswith("entity"))
        for group, value in {**accuracy, "": mean}.items():
            self._score(checkpoint, name, group, value, corrected[group])

    def _reading(self, name: str, source: str, step: int, data: Any) -> None:
        checkpoint, place = self._place(name, step)
        found = self._store(source).read(steps=[step])
        nats = found[found["quantity"] == "surprisal"].set_index("item")["value"] * math.log(2)
        rows = data.reading_times
        of_text = dict(zip(rows["text"], rows["item"].map(nats), strict=True))
        before = rows["text"].str.rsplit(n=1).str[0].where(rows["index"] > 0)
        predictions = [
            {"id": i, "pred": of_text[text], "prev_pred": of_text.get(context, math.nan)}
            for i, (text, context) in enumerate(zip(rows["text"], before, strict=True))
        ]
        if self.backend.startswith("enc_dec"):  # the pipeline reads in one way, and has one folder for it
            place = f"{checkpoint}/zero_shot/enc_dec"
        content = {"reading": {"predictions": predictions}}
        self._write(f"{place}/reading/predictions.json", content)
        if step == max(self.names):
            self.submitted["reading"] = content
        said = pd.DataFrame(predictions, dtype=float)
        of_word = rows[[predictor for predictor in OF_WORD if rows[predictor].notna().any()]]
        length_before = before.str.split().str[-1].str.len()
        baselines = {
            "word": of_word,
            "spillover": of_word.assign(length_before=length_before, **said[["prev_pred"]]),
        }
        exact = _fits(
            {
                (time, baseline): _partial_r2(rows[time], said["pred"], predictors)
                for time in data.times
                for baseline, predictors in baselines.items()
            }
        )
        own = self._store(name).read(steps=[step], quantities=["partial_r2"])
        corrected = _fits(own.set_index(["time", "baseline"])["value"].to_dict())
        self.fast.setdefault("reading", []).append(exact)
        for group, value in exact.items():
            self._score(checkpoint, name, group, value, corrected[group])

    def _acquisition(self, name: str, source: str, step: int, data: Any) -> None:
        rows = self._store(source).read(steps=[step], quantities=["log_probability"])
        words = data.choices.merge(rows[["item", "value"]], on="item", validate="1:1")
        contexts = [text[: begin - 1] for text, begin in zip(words["text"], words["begin"], strict=True)]
        self.surprisals += [
            {"step": self.names[step], "word_count": step, "target_word": word, "context_id": i,
             "context": context, "surprisal": -value}
            for word, i, context, value in zip(
                words["group"], words["item"].str.rpartition("_")[2].astype(int), contexts, words["value"], strict=True
            )
        ]  # fmt: skip
        steps = len({row["step"] for row in self.surprisals})
        about = {"model_name": self.folder.name, "use_bos_only": False}
        content = {
            "metadata": {**about, "total_steps": len(self.names), "completed_steps": steps},
            "results": self.surprisals,
        }
        self.submitted["aoa_surprisals"] = content
        if step == max(self.names):
            self._write(f"main/zero_shot/{self.backend}/AoA_word/surprisal.json", content)

    def _score(self, checkpoint: str, data: str, group: str, exact: float, corrected: float) -> None:
        row = {"checkpoint": checkpoint, "data": data, "group": group, "exact": exact, "corrected": corrected}
        self.scores.append(row)


def _is_fast(name: str) -> bool:
    """Return whether an observer's data is for each checkpoint."""
    return name.endswith("_fast") or name in ("reading", "aoa")


def _partial_r2(times: Any, surprisal: Any, baseline: Any) -> float:
    """Return what surprisal adds to a baseline; NaN, with a warning, for too few words with a finite surprisal."""
    try:
        return reading_fit(times, surprisal, baseline).partial_r2
    except ValueError as error:
        log.warning("the exact score of reading times is NaN: %s", error)
        return math.nan


def _fits(partial_r2: Mapping[Any, float]) -> dict[str, float]:
    """Return the scores of eye tracking (mean over its times) and self-paced reading, of those by time and baseline."""
    tracked = [
        of for (time, baseline), of in partial_r2.items() if time.startswith("RT") and baseline == "word"
    ]
    paced = partial_r2.get(("self_paced_reading_time", "spillover"), math.nan)
    return {"rt": float(np.mean(tracked or [math.nan])), "spr": float(paced)}


def _mean(accuracy: Mapping[str, float], *, splits: bool) -> float:
    """Return the mean over groups; with ``splits``, over the means of those whose names begin alike."""
    table = pd.Series(accuracy)
    if splits:  # regular_0_ops, …
        table = table.groupby(table.index.str.replace(r"_\d+_ops$", "", regex=True)).mean()
    return float(table.mean())

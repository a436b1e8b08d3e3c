"""lmdyn's own commands: each function is one, and its signature and docstring are its command line."""

import glob
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)


def analyze(
    run: str,
    *,
    words: list[str],
    checkpoints: str | None = None,
    revisions: str | None = None,
    config: Sequence[Path] = (),
    only: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
    data: str | None = None,
    out: Path | None = None,
    shard: str | None = None,
    scheduled: bool = False,
    keep: int | None = None,
    status: bool = False,
    strict: bool = False,
    untrusted: bool = False,
    device: str | None = None,
    logger: Sequence[str] = (),
) -> None:
    """Replay observers over checkpoints. The command skips existing observations.

    Args:
        run: a run folder or a checkpoint in it (.ckpt); or a folder of checkpoint-*, a folder written by
            save_pretrained, or a hub model. The config.yaml of a run defines model, data and observers. The other kinds
            require --out, and either --config, or --observe with --data.
        words: the command line.
        checkpoints: steps (5 or 5:100), a folder or a glob of checkpoints, also relative to RUN; default:
            RUN/checkpoints
        revisions: revisions of a hub model: step0,step1000, a pattern such as 'step*', or all. If {} in the name of
            the model stands for several models, give the values of {}, e.g. 0k,20k
        config: yaml that changes the configuration of the run, e.g. with other observers under trainer.callbacks
            (`callbacks+:` appends)
        only: run only configured observers with these names of folders or classes; * matches any text
        observe: run these observers of lmdyn with default arguments instead of the configured observers
        data: a text file, a yaml with data:, or package.Class of a LightningDataModule; observers read this text
            instead of the run's validation set
        out: folder that receives observations/; default: RUN
        shard: i/n: run as worker i of n (i from 0). The worker observes checkpoints i, i+n, …, then the checkpoints
            that other workers have not observed. Default: the environment of torchrun or SLURM, else 0/1
        scheduled: call each observer only at the steps of its schedule (the last checkpoint counts as its last step)
        keep: for a hub model: largest number of downloaded checkpoints in the cache, for all workers together (at
            least two for each worker). lmdyn deletes a checkpoint after the observation, but keeps checkpoints from
            earlier downloads
        status: only show which observations of the same command exist, and which observations are missing
        strict: stop at the first failed checkpoint; default: continue with other checkpoints and report failures last
        untrusted: do not trust the run: config.yaml may name only classes of lmdyn, optimizers of torch and two
            loggers. lmdyn still trusts your own files (--config)
        device: cpu, cuda, …; default: cuda if available
        logger: TensorBoardLogger, CSVLogger, WandbLogger, your own class (package.Class), or none; repeat the option
            for several loggers. A named logger receives all requested observations. By default, the loggers of the
            configuration receive only new observations
    """
    from lmdyn.cli import analyze as replay

    if keep is not None and revisions is None:
        raise ValueError(
            "--keep applies only to models of the hub, and limits the downloads: give --revisions, or omit --keep"
        )
    if status and shard:
        raise ValueError("--status shows the checkpoints of all workers: omit --shard")
    if run.endswith(".ckpt") and checkpoints is None:  # of the run around its folder
        path = Path(run).absolute()
        run = str(path.parents[1])
        checkpoints = glob.escape(str(path))
    replay.analyze(
        run,
        checkpoints=checkpoints,
        revisions=revisions,
        configs=config,
        only=only,
        observe=observe,
        data=data,
        out=out,
        scheduled=scheduled,
        untrusted=untrusted,
        status=status,
        shard=parse_shard(shard),
        strict=strict,
        keep=keep,
        device=_device(device),
        loggers=logger,
        command=words,
    )
    if status:
        return
    observers = [part for path in config for part in ("--config", str(path))]
    written = [sys.executable, "-m", "lmdyn.cli", "report", str(out or run), *observers]
    log.info("to write the report, run %s", shlex.join(written))


def babylm(
    model: str,
    *,
    words: list[str],
    data: Path | None = None,
    backend: Literal["causal", "mlm", "mntp", "enc_dec_mask", "enc_dec_prefix"] = "causal",
    checkpoints: str | None = None,
    revisions: str | None = None,
    out: Path = Path("results"),
    device: str | None = None,
) -> None:
    """Evaluate checkpoints like the BabyLM challenge of 2026, and write the files of the challenge.

    The command loads each checkpoint once. Observers read the fast sets at each checkpoint, and the full sets at the
    last checkpoint. OUT/MODEL/scores_BACKEND.csv has the exact scores of the pipeline, faults included, and corrected
    scores. The command leaves out tasks without data.

    Args:
        model: a folder of chck_*, or a hub model
        words: the command line.
        data: the pipeline's folder evaluation_data; default: $BABYLM_DATA
        backend: kind of model: causal; masked, or encoder-decoder, each with one of two ways to score a text
        checkpoints: folder or glob of checkpoints; default: MODEL
        revisions: revisions of a hub model; default: chck_*
        out: folder that receives the folder of the model; run the same command again to add missing files
        device: cpu, cuda, …; default: cuda if available
    """
    if data is None and "BABYLM_DATA" not in os.environ:
        raise ValueError("BabyLM's folder evaluation_data is unknown: give --data, or set BABYLM_DATA")
    if data is not None:
        os.environ["BABYLM_DATA"] = str(data.absolute())
    from lmdyn.cli import babylm as challenge

    folder = challenge.babylm(
        model,
        checkpoints=checkpoints,
        revisions=revisions,
        backend=backend,
        out=out,
        device=_device(device),
        command=words,
    )
    log.info("lmdyn wrote the files of the BabyLM pipeline into %s", folder)


def _device(name: str | None) -> str:
    """Return an available device: the given one, or if None, ``cuda`` if available, else ``cpu``."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1).to(name)
    except Exception as error:  # raised by torch or by the backend's library
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {name!r} is unavailable ({reason}): expected cpu, cuda, …") from error
    return name


def parse_shard(text: str | None) -> tuple[int, int]:
    """Parse ``"i/n"`` as (i, n); None reads torchrun's or SLURM's environment and returns (0, 1) without either.

    Raises:
        ValueError: if not 0 ≤ i < n.

    Example:
        >>> parse_shard("1/4")
        (1, 4)
    """
    source = "--shard"
    if text is None:
        for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank in os.environ and size in os.environ:
                text = f"{os.environ[rank]}/{os.environ[size]}"
                source = f"the environment's {rank}/{size}"
                break
        else:
            return 0, 1
    try:
        i, n = (int(part) for part in text.split("/"))
    except ValueError:
        i, n = -1, 0
    if not 0 <= i < n:
        raise ValueError(f"{source} is {text!r}: expected i/n with 0 <= i < n, e.g. 0/4")
    return i, n


def report(
    run: list[Path],
    *,
    out: Path | None = None,
    config: Sequence[Path] = (),
    untrusted: bool = False,
    all: bool = False,
) -> None:
    """Draw the figures and tables of all observations on one page, with PNG, SVG and CSV files.

    Args:
        run: run folder, which contains observations/, or a folder with only one run in it
        out: folder of the report; default: RUN/report; required for several runs
        config: yaml that names your own observers, such as that of analyze, if config.yaml does not name the observers
        untrusted: do not trust the runs: lmdyn imports no class that config.yaml names, and draws only numbers
        all: draw every observation; default: at most 300 observations of each observer, evenly spaced

    Raises:
        ValueError: if several runs are given without ``--out``.
    """
    if len(run) > 1 and out is None:
        raise ValueError("a report of several runs requires a separate folder: give --out DIR")
    from lmdyn.cli.recorded_observers import import_configured
    from lmdyn.cli.report import only_run, write_report

    run = [only_run(folder) for folder in run]
    for path in config:
        import_configured(path)
    page = write_report(run, out or run[0] / "report", untrusted=untrusted, every_step=all)
    log.info("report: %s", page)


def prepare(*, rest: list[str], tokenizer: str | None = None) -> None:
    """Encode the text of a configuration into the cache, so that a run on a GPU does not wait for the encoding.

    Usage: lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]

    Args:
        rest: arguments as for ``fit``.
        tokenizer: also save the tokenizer in this folder, to compare several models token by token
    """
    folder = None if tokenizer is None else Path(tokenizer)
    if folder is not None and folder.is_file():
        raise ValueError(f"--tokenizer {folder} is a file: give an existing or a new folder")
    from lmdyn.analysis.inspection.attributes import read_attribute
    from lmdyn.cli.fit import ONE_PROCESS, LmdynCLI, as_option
    from lmdyn.runs.atomic_files import remove_links

    cli = LmdynCLI([*rest, as_option({"trainer": {**ONE_PROCESS, "logger": False}})], run=False)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    log.info("data prepared")
    if folder is not None:
        made = read_attribute(cli.datamodule, "tokenizer")
        if made is None:
            raise ValueError(f"{type(cli.datamodule).__name__} has no tokenizer: omit --tokenizer")
        remove_links(folder)
        made.save_pretrained(folder)
        log.info("lmdyn saved the tokenizer in %s (%d tokens)", folder, len(made))


def inspect(
    model: str,
    *,
    of_classes: list[str],
    data: str | None = None,
    write: Path | None = None,
    forward: str | None = None,
    device: str | None = None,
) -> None:
    """Show a model, its sites and the observers that run on it, and write a starting yaml. The command trains nothing.

    Args:
        model: a yaml with model: (and data:); a run folder; a folder written by save_pretrained, or a hub name; or
            package.Class of a LightningModule or another nn.Module, with arguments --model.ARG VALUE
        of_classes: arguments of the classes.
        data: a yaml with data:, a text file, or package.Class of a LightningDataModule, with arguments --data.ARG
            VALUE; default: the data of the yaml, otherwise a small synthetic corpus
        write: write a starting yaml to this file, ready for `lmdyn fit`
        forward: package.function: a function (module, batch) -> logits, for a model that lmdyn cannot call itself
        device: cpu, cuda, …; default: cuda if available
    """
    from lmdyn.cli.inspect import inspect_model

    inspect_model(
        model, data=data, arguments=of_classes, forward=forward, write=write, device=_device(device)
    )


def configs(study: str | None = None, *, to: Path = Path("configs")) -> None:
    """List or copy the configurations shipped with lmdyn.

    Without arguments, the command lists names for `--config NAME`. With a study, the command copies the configurations
    and the workflow of the study, for `snakemake --profile configs/STUDY/PROFILE`.

    Args:
        study: a study, such as he2022_twotower
        to: destination folder; default: configs
    """
    from lmdyn.cli.parsing.shipped import copy_shipped, shipped_files

    if study is None:
        sys.stdout.write("\n".join(shipped_files()) + "\n")
        return
    copied = copy_shipped(study, to)
    log.info("lmdyn copied %d files to %s", len(copied), to)


def check(
    *,
    rest: list[str],
    replay: Sequence[str] = (),
    json: bool = False,
) -> None:
    """Build data, model and observers as `fit` would, and print a line for each failure or meaningless number.

    Usage: lmdyn check --config FILE … [--replay OVERLAY …] [--data.… VALUE] [--json].
    The command trains nothing and changes no run folder. The exit status is 1 if there are errors. Warnings name
    numbers that the run would lack. Other arguments of `fit` may follow --config FILE.

    Args:
        rest: arguments as for ``fit``.
        replay: yaml for a later `analyze --config`; check these observers on the checkpoints that the run will have
        json: write the lines as JSON, for scripts

    Raises:
        SystemExit: with status 1 if something would fail.
        ValueError: without a configuration.
    """
    if not any(word == "--config" or word.startswith("--config=") for word in rest):
        gone = any(word.startswith("--profile") for word in rest)
        remedy = ". --profile was removed: check each configuration, e.g. --config lm.yaml --replay o.yaml"
        raise ValueError(f"--config is missing: give --config FILE{remedy * gone}")
    from lmdyn.cli import check as checks

    good = checks.check(rest, replay, as_json=json)
    if not good:
        raise SystemExit(1)


def fork(
    run: Path,
    *,
    words: list[str],
    step: int | None = None,
    epoch: int | None = None,
    set: tuple[str, ...] = (),
    data_seed: int | None = None,
    out: Path | None = None,
) -> None:
    """Continue from a full checkpoint of a run with other settings, in a new folder.

    Without changes, the fork equals the run bit by bit. To resume a killed fork, run the same command again.

    Args:
        run: folder of the run
        words: the command line.
        step: step of a full checkpoint (in RUN/resume/)
        epoch: the full checkpoint after this number of epochs, instead of --step
        set: KEY=VALUE …: settings with the names that fit uses, such as trainer.max_epochs=15 or
            model.init_args.optimizer.init_args.lr=5. A new learning rate scales the current learning rate by the ratio
            of new to old
        data_seed: another order of data from this step on
        out: folder of the fork; default: RUN_fork_K_<digest of the changes>
    """
    if (step is None) == (epoch is None):
        raise ValueError("give either --step K or --epoch E, not both")
    changes = {}
    for word in set:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {word!r}: expected KEY=VALUE, such as trainer.max_epochs=15")
        changes[key.lstrip("-")] = value
    from lmdyn.cli.fork import fork

    folder = fork(run, step, epoch=epoch, changes=changes, data_seed=data_seed, out=out, command=words)
    log.info("fork: %s", folder)

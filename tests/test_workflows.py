"""Chains of runs: Snakemake plans every profile, and the smallest chain runs in miniature from end to end."""

import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import yaml

from lmdyn.cli.__main__ import main as lmdyn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROFILES = sorted((ROOT / "configs").rglob("config.yaml"))
OUTLOOK = ROOT / "configs" / "saphra2021_outlook"
TASKS = ("upos", "xpos", "semtag_coarse", "semtag", "topic")


def main(arguments: list[str]) -> None:
    """A command; ``fit`` draws no report of its one run, which takes longer than a tiny training."""
    with mock.patch("lmdyn.cli.report.write_report") if arguments[0] == "fit" else nullcontext():
        lmdyn(arguments)


def changes_of(profile: Path) -> dict[str, str]:
    """What each run of a profile changes in lm.yaml, with paths from the root: once for each seed."""
    config = yaml.safe_load(profile.read_text(encoding="utf-8"))["config"]
    here = str(profile.parent.relative_to(ROOT))
    found = {}
    for run, changes in config["runs"].items():
        own = changes if isinstance(changes, dict) else {"with": changes}
        changes = own["with"].replace("{HERE}", here)
        for seed in own.get("seeds", config.get("seeds", ())):
            drawn = [seed["init"], seed["order"]] if isinstance(seed, dict) else [seed]
            init, order = drawn[0], drawn[-1]
            found["_".join(map(str, [run, *drawn]))] = (
                f"{changes} --seed_everything {init} --data_seed {order}".replace("{SEED}", str(init))
            )
        if "seeds" not in config:
            found[run] = changes
    return found


def snakemake(folder, profile, *words):
    """What it says of a profile from a folder, and its numbers of jobs by rule."""
    command = [sys.executable, "-m", "snakemake", "--profile", f"configs/{profile}", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    return said, {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)}


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: f"{p.parent.parent.name}/{p.parent.name}")
def test_snakemake_plans_the_chain(profile, tmp_path):
    """A dry run, as the README has it: from the root, which tells all commands."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    plan, jobs = snakemake(tmp_path, profile.parent.relative_to(ROOT / "configs"), "-n", "-p")
    named = set(re.findall(r"\S*configs/\S+\.yaml", plan))
    shipped = {p.name for p in profile.parent.glob("*.yaml")} - {"config.yaml"}
    assert all(Path(n).exists() for n in named)
    settings = yaml.safe_load(profile.read_text(encoding="utf-8"))
    of_another = ["lm.yaml", "observers.yaml"]["runs" not in settings["config"] :]
    if "texts" in settings["config"]:
        of_another = [p.name for p in (profile.parents[1] / settings["config"]["of"]).glob("*er*.yaml")] + [
            "lm.yaml"
        ]
    assert {Path(n).name for n in named} == (shipped or {*of_another})
    # what lets a chain that was killed go on, and keeps what is trained when observers change
    kept = {"nolock": True, "rerun-incomplete": True, "rerun-triggers": "mtime"}
    assert kept.items() <= settings.items()
    config = settings["config"]
    if "forks" in config:  # configs/forks.smk
        runs = {(fork, seed) for fork in config["forks"] for seed in config["seeds"]}
        assert (jobs["origins"], jobs["fork"], jobs["observe"]) == (1, len(runs), len(runs))
        origins = f"{profile.parents[1].name}/{config['of']}"
        assert re.search(rf"snakemake --profile \S*configs/{origins} trained", plan)
        for fork, seed in runs:
            at = f"--epoch {config['epoch']} " if "epoch" in config else ""
            words = f"{config['run']}_{seed} {at}{config['forks'][fork].replace('{seed}', str(seed))} --out"
            out = rf"\S+/{profile.parent.name}/{fork}_{seed}"
            assert re.search(rf"fork runs/{origins}/{re.escape(words)} {out} ", plan)
            assert re.search(rf"LMDYN_SEED={seed} .*analyze {out} --config", plan)
        return
    if "runs" in config:  # configs/study.smk
        runs = changes_of(profile)
        assert (jobs["language_model"], jobs["observe"], jobs["report"]) == (len(runs), len(runs), 1)
        assert jobs.get("claims", 0) == config.get("claims", False)
        assert jobs.get("records", 0) == ("records" in config)
        plan = re.sub(r"\S*configs/", "configs/", plan)  # Snakemake's paths are absolute
        for run, changes in runs.items():
            assert re.search(rf"fit --config \S+/lm.yaml {re.escape(changes)} .*version {run} ", plan)
            of = profile.parents[1] / config.get("of", profile.parent.name)
            observers = f"{of.relative_to(ROOT)}/observers.yaml"
            if config.get("languages"):
                own = rf"sed 's/\S+ \S+ {run.rpartition('_')[2]}/' {observers} > (\S+/observers_{run}.yaml) "
                observers = re.search(own, plan)[1]
            arguments = f"--config {observers} {config.get('observe', '')}"
            replayed = re.search(rf"analyze \S+/{run} {re.escape(arguments)}", plan)
            assert bool(replayed) != config.get("live", False)  # observed as it is made
        return
    seeds = len(config["seeds"])
    if "taggers" not in config:  # of the outlook and of attention: models, partners and taggers of each seed
        outlook = profile.parent.parent == OUTLOOK
        trained = jobs["train"] if outlook else jobs["language_model"] + jobs["tagger"]
        assert (trained, jobs["observe"]) == ((4 * seeds, 3 * seeds) if outlook else (3 * seeds, seeds))
        assert (jobs["claims"], jobs["records"]) == (1, 1)
        order = "--data_seed" if outlook else "--data.init_args.order_seed"
        for seed in config["seeds"]:
            partner = rf"partner.yaml --seed_everything {seed + 100} {order} {seed} "
            assert re.search(rf"{partner}.*version partner_{seed} ", plan)
            assert re.search(
                rf"LMDYN_SEED={seed} .*analyze \S+/lm_{seed} .*observers(_{seed})?.yaml --scheduled", plan
            )
        return
    kinds = [config[kind] for kind in ("taggers", "current", "shuffled")]
    assert (jobs["tagger"], jobs["language_model"]) == (sum(map(len, kinds)) * seeds, 2 * seeds)
    taggers = set(re.findall(r"--model.init_args.task (\w+) .*?--model.init_args.target (\w+) --model", plan))
    assert taggers == {(task, target) for task in TASKS for target in ("next", "current")}


@pytest.mark.parametrize(
    ("study", "models"), [("saphra2021_attention", 2), ("saphra2019_svcca", 2), ("inoue2022_chaos", 1)]
)
def test_a_seed_that_is_added_is_made(study, models, tmp_path):
    """Of a chain that has ended: what the added one lacks is asked for, and no report hides it."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    profile = f"{study}/organism"
    seeds = yaml.safe_load((ROOT / "configs" / profile / "config.yaml").read_text())["config"]["seeds"]
    summary, _ = snakemake(tmp_path, profile, "--detailed-summary")
    outputs = [line.split("\t")[0] for line in summary.splitlines() if line.startswith(("runs/", "docs/"))]
    began = time.time()  # later than its configurations, however new the clone
    # what is made first comes last; report and claims in the end
    for i, output in enumerate(reversed(outputs)):
        path = tmp_path / output
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if path.name == "tokenizer" else path.touch()
        runs = path.name == "tokenizer" or path.parent.name == "done"
        os.utime(path, (began + (i if runs else 500),) * 2)
    assert snakemake(tmp_path, profile, "-n")[1] == {}  # nothing to be done
    for path in (tmp_path / "runs" / profile / "done").glob(f"*_{seeds[-1]}*"):
        path.unlink()
    _, jobs = snakemake(tmp_path, profile, "-n")
    assert jobs["language_model"] == models
    assert jobs["observe"] >= 1
    assert (jobs["report"], jobs["records"]) == (1, 1)
    (tmp_path / "runs" / profile / "report" / "index.html").unlink()
    assert "report" in snakemake(tmp_path, profile, "-n")[1]


SMALL = [
    "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu",
    "--trainer.max_steps=3", "--trainer.limit_val_batches=2", "--trainer.log_every_n_steps=1",
    "--model.init_args.embedding_size=6", "--model.init_args.hidden_size=6",
    "--data.init_args.n_train_tokens=2000", "--data.init_args.n_validation_tokens=500",
    "--data.init_args.n_test_tokens=500", "--data.init_args.batch_size=5",
]  # fmt: skip


def fit(here, name, *changes):
    """Train by the profile's lm.yaml, into the folder of this name."""
    main(["fit", "--config", str(here / "lm.yaml"), *changes, f"--trainer.logger.init_args.version={name}"])


def with_little(path, folder):
    """A copy of a file of observers, of little text, without references but to taggers of upos."""

    def shrink(value):
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            shrink(part)
        if isinstance(value, dict):
            value |= {name: size for name, size in FEW.items() if name in value}
            if "names" in value:
                value["names"] = [name for name in value["names"] if name.endswith("upos")]

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    shrink(document)
    callbacks = document["trainer"]["callbacks"]
    document["trainer"]["callbacks"] = [c for c in callbacks if "'names': []" not in str(c)]
    copy = folder / path.name
    copy.write_text(yaml.safe_dump(document), encoding="utf-8")
    return copy, [c["init_args"]["name"] for c in document["trainer"]["callbacks"]]


FEW = {
    "n_train_tokens": 4000,
    "n_validation_tokens": 1000,
    "n_test_tokens": 1000,
    "epochs": 1,
    "train_tokens": 1000,
}


def test_the_organism_in_miniature(tmp_path, monkeypatch, without_report):
    """Every kind of run of the chain by its command, in one process: tokenizer, models, taggers, observations.

    The taggers are those of upos; of others, which differ in text or optimizer, the commands are read. Observers of
    other organisms: tests/test_paper_profiles.py.
    """
    monkeypatch.chdir(tmp_path)
    here, runs = ROOT / "configs" / "saphra2019_svcca" / "organism", Path("runs/saphra2019_svcca/organism")
    chain = yaml.safe_load((here / "config.yaml").read_text(encoding="utf-8"))["config"]
    main(["prepare", "--config", str(here / "lm.yaml"), *SMALL, "--data.init_args.tokenizer=null", "--tokenizer",
          str(runs / "tokenizer")])  # fmt: skip
    partner = ["--config", str(here / "partner.yaml"), "--seed_everything=102"]
    for name, others in (("lm_2", ["--seed_everything=2"]), ("partner_2", partner)):
        fit(here, name, *others, *SMALL, "--data.init_args.order_seed=2")

    def settings_of(name):
        known, _, target = name.removeprefix("shuffled_").rpartition("_")
        file, *changes = chain["taggers"][known].split()
        return [
            "--config", str(here / file), *changes, *SMALL, f"--model.init_args.target={target}",
            f"--model.init_args.shuffled_labels={name.startswith('shuffled_')}", "--data.init_args.order_seed=2",
            f"--trainer.logger.init_args.version={name}_2",
        ]  # fmt: skip

    for known in ("xpos", "topic_adam"):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["fit", *settings_of(f"{known}_next"), "--print_config"])
    for name in ("upos_next", "upos_current", "shuffled_upos_next"):
        main(["fit", *settings_of(name)])
    weights = max((runs / "taggers" / "upos_next_2" / "checkpoints").glob("*.ckpt"))
    main(["test", *settings_of("upos_next"), f"--ckpt_path={weights}"])
    monkeypatch.setenv("LMDYN_SEED", "2")
    observers, names = with_little(here / "observers.yaml", tmp_path)
    main(["analyze", str(runs / "lm_2"), "--config", str(observers), "--scheduled"])
    there = {path.name: pd.read_parquet(path) for path in (runs / "lm_2" / "observations").iterdir()}
    assert set(there) == set(names) > {"taggers_next", "taggers_current", "other_seed", "layers"}
    for target in ("next", "current"):
        compared = there[f"taggers_{target}"].query("quantity == 'svcca'")
        assert set(compared["reference"]) == {"upos", "shuffled_upos", "untrained_upos"}
        pairs = set(zip(compared["site"], compared["reference_site"], strict=True))
        assert pairs == {("embedding", "embedding"), ("h1", "h1"), ("h2", "h1")}
        assert compared["value"].between(0, 1).all()

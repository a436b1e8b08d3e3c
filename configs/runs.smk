# Shared by the chains of runs; included by each study's Snakefile.
#
# A chain that was killed resumes with the same command: completed runs are kept, the others resume from their last
# checkpoint, to the same weights bit by bit; processes left by a killed chain are terminated first. For this, profiles set
# `nolock: true` (lmdyn's own lock is released when the process ends) and `rerun-incomplete`.
import os
import sys

if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())  # so that the script `snakemake` finds the same modules as `python -m lmdyn.cli`

PROFILE = config["profile"]
STUDY = os.path.basename(workflow.basedir)
HERE = f"{workflow.basedir}/{PROFILE}"
RUNS = f"runs/{STUDY}/{PROFILE}"
LMDYN = f"{sys.executable} -m lmdyn.cli"
# A profile's `gpus` are the GPUs of one training, 1 unless its lm.yaml sets `devices` for DDP; an observation has one. They
# are requested from a cluster, job by job. On one machine, `--resources gpu=N` starts no more jobs than N GPUs carry.
GPUS = int(config.get("gpus", 0))
HOURS = int(config.get("hours", 0)) # maximum per job, requested from a cluster


def resources_of(n):
    """What a job of the profile takes."""
    asked = {"gpu": n} if n else {}
    return asked | ({"runtime": 60 * HOURS} if HOURS else {}) | ({"mem_mb": 1000 * config["memory_gb"]} if "memory_gb" in config else {})


QUIET = "--trainer.enable_progress_bar false --trainer.enable_model_summary false"


onstart:
    from pathlib import Path
    from lmdyn.claims.chains.chain import begin_chain

    begin_chain(Path(RUNS))


def with_seeds(runs):
    """Runs by name with their arguments, once for each of the profile's `seeds`.

    `seeds: [2, 3]` makes <run>_2 and <run>_3, with one seed for initialisation and order of data; pairs
    `{init: 2, order: 3}` make <run>_2_3. "{SEED}" in the arguments is the seed. Without seeds names and arguments are those of `runs`. A run with seeds of its own
    is `{with: arguments, seeds: [2, 3]}`.
    """
    made = {}
    for run, arguments in runs.items():
        own = arguments if isinstance(arguments, dict) else {"with": arguments}
        arguments = (own["with"] or "").replace("{HERE}", HERE)
        for seed in own.get("seeds", config.get("seeds", [None])):
            if seed is None:
                made[run] = arguments
            elif isinstance(seed, dict):
                init, order = int(seed["init"]), int(seed["order"])
                made[f"{run}_{init}_{order}"] = f"{arguments} --seed_everything {init} --data_seed {order}"
            else:  # Snakemake passes the numbers of a profile's lists as text
                of_seed = arguments.replace("{SEED}", str(int(seed)))
                made[f"{run}_{int(seed)}"] = f"{of_seed} --seed_everything {int(seed)} --data_seed {int(seed)}"
    return made


def fit(run, *phases):
    """Shell commands that resume a run, or start it anew where there is nothing to resume from.

    Args:
        run: its name.
        phases: arguments of `lmdyn fit`; those after the first go on in the same run with what they change, once those
            before have ended. The run's folder remembers which have.
    """
    folder = f"{RUNS}/{run}"
    version = f"--trainer.logger.init_args.version {run.rpartition('/')[2]}"
    commands = [f"{LMDYN} fit {arguments} {QUIET} {version}" for arguments in phases]
    first = (
        f'run={folder}; if ls "$run"/resume/step=*.ckpt >/dev/null 2>&1; then last="--ckpt_path last"; '
        f'else rm -rf "$run"; last=""; fi; '
    )
    for number, command in enumerate(commands[:-1], start=1):
        first += f'if [ ! -e "$run"/phase_{number} ]; then {command} $last && touch "$run"/phase_{number} || exit 1; fi; last="--ckpt_path last"; '
    return f"{first}{commands[-1]} $last"

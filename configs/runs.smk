# What the chains of runs have in common; included by each study's Snakefile.
import os
import sys

PROFILE = config["profile"]
HERE = f"{workflow.basedir}/{PROFILE}"
RUNS = f"runs/{os.path.basename(workflow.basedir)}/{PROFILE}"
LMDYN = f"{sys.executable} -m lmdyn.cli"
QUIET = "--trainer.enable_progress_bar false --trainer.enable_model_summary false"


def fit(run, arguments):
    """Shell commands that resume a run, or start it anew where there is nothing to resume from."""
    return (
        f'run={RUNS}/{run}; if ls "$run"/resume/step=*.ckpt >/dev/null 2>&1; then last="--ckpt_path last"; '
        f'else rm -rf "$run"; last=""; fi; '
        f"{LMDYN} fit {arguments} {QUIET} --trainer.logger.init_args.version {run.rpartition('/')[2]} $last"
    )

# The chain of studies with one kind of model: train each run → observe its checkpoints → one report of all → results.
#
# A profile's config.yaml defines its `runs` with their changes to lm.yaml ("{HERE}" is the profile's folder), the `seeds`
# of each run, and in `then` the changes of a second phase, which continues from the end of the first; observers.yaml
# defines the observers. If a chain was interrupted or killed, the same command resumes it. If observers.yaml has changed,
# runs are observed again and none is trained again; in it, $LMDYN_SEED is the end of the run's name, its seed. To train a run again with another lm.yaml, give it another name, or
# remove its folder and its files in done/. With `of: organism`, lm.yaml and observers.yaml are those of that profile. On a cluster: --executor slurm (snakemake-executor-plugin-slurm) with
# --default-resources.
include: "runs.smk"


OBSERVE = config.get("observe", "")  # arguments of `lmdyn analyze`
# with `languages: true`, the `grammar_seed` in observers.yaml is that of the run, which has the number of its seed
OF = f"{workflow.basedir}/{config.get('of', PROFILE)}"
OBSERVERS = f"{workflow.basedir}/{config['observers']}/observers.yaml" if "observers" in config else f"{OF}/observers.yaml"
OWN_OBSERVERS = f"{RUNS}/logs/observers_{{wildcards.run}}.yaml" if config.get("languages") else OBSERVERS
OWN_LANGUAGE = f"sed 's/grammar_seed: [0-9]*/grammar_seed: {{params.seed}}/' {OBSERVERS} > {OWN_OBSERVERS} && " if config.get("languages") else ""


if "forks" in config:

    include: "forks.smk"

else:
    CHANGES = with_seeds(config["runs"])
    THEN = with_seeds(config.get("then", {})) # by run: the arguments of a second phase, in the same run

    def tested(run):
        """The command that tests the last model of a run, if `tested` of the profile names the run without its seed."""
        if run.rpartition("_")[0] not in config.get("tested", []):
            return ""
        last = f"--ckpt_path $(ls {RUNS}/{run}/checkpoints/step=*.ckpt | tail -n 1)"
        of_run = f"--config {OF}/lm.yaml {CHANGES[run]} {QUIET} --trainer.logger.init_args.version {run}"
        return f"&& {LMDYN} test {of_run} {last}"

    rule language_model:
        output:
            touch(f"{RUNS}/done/trained_{{run}}"),
        log:
            f"{RUNS}/logs/{{run}}.log",
        params:
            fit=lambda w: fit(w.run, *(f"--config {OF}/lm.yaml {of[w.run]}" for of in (CHANGES, THEN) if w.run in of)),
            test=lambda w: tested(w.run),
        resources:
            **resources_of(GPUS),
        priority: 1 # the longest jobs first
        shell:
            "( {params.fit} {params.test} ) > {log} 2>&1"


rule trained: # without observations: snakemake --profile … trained
    input:
        expand(f"{RUNS}/done/trained_{{run}}", run=CHANGES),


if config.get("live"):  # a profile whose runs are observed as they are made

    rule observe:
        input:
            f"{RUNS}/done/trained_{{run}}",
        output:
            touch(f"{RUNS}/done/observed_{{run}}"),
        shell:
            "true"

else:

    rule observe:
        input:
            f"{RUNS}/done/trained_{{run}}",
            OBSERVERS,
        output:
            touch(f"{RUNS}/done/observed_{{run}}"),
        log:
            f"{RUNS}/logs/observe_{{run}}.log",
        params:
            seed=lambda w: w.run.rpartition("_")[2],
        resources:
            **resources_of(min(1, GPUS)),
        shell:
            f"{OWN_LANGUAGE}LMDYN_SEED={{params.seed}} {LMDYN} analyze {RUNS}/{{wildcards.run}} --config {OWN_OBSERVERS} {OBSERVE} > {{log}} 2>&1"


rule report:
    input:
        expand(f"{RUNS}/done/observed_{{run}}", run=CHANGES),
    output:
        f"{RUNS}/report/index.html",
    log:
        f"{RUNS}/logs/report.log",
    params:
        runs=[f"{RUNS}/{run}" for run in CHANGES],
    shell:
        f"{LMDYN} report {{params.runs}} --out {RUNS}/report > {{log}} 2>&1"


RUN_FOLDERS = [f"{RUNS}/{run}" for run in CHANGES]


include: "results.smk"

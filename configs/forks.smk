# Runs that continue from a checkpoint of another profile's runs with other settings; included by study.smk.
#
# `of` is that profile, whose runs are trained first if they do not exist; `run` is the name of the run before its seed,
# `epoch` the epoch after which each of the `seeds` is forked, and `forks` the arguments of `lmdyn fork` by name:
# <fork>_<seed>; in them, {seed} is the seed, and without `epoch` they have a --step each. The runs must have a full
# checkpoint of this epoch or step: `keep` of their ScheduledCheckpoint must be large enough.
AT = f"--epoch {config['epoch']} " if "epoch" in config else ""
CHANGES = {
    f"{fork}_{int(seed)}": f"runs/{STUDY}/{config['of']}/{config['run']}_{int(seed)} {AT}"
    f"{arguments.replace('{seed}', str(int(seed)))}"
    for fork, arguments in config["forks"].items()
    for seed in config["seeds"]
}


rule origins: # a separate chain, which uses the cores while it runs
    output:
        touch(f"{RUNS}/done/origins"),
    log:
        f"{RUNS}/logs/origins.log",
    threads: workflow.cores
    shell:
        f"{sys.executable} -m snakemake --profile {workflow.basedir}/{config['of']} trained > {{log}} 2>&1"


rule fork:
    input:
        ancient(f"{RUNS}/done/origins"),
    output:
        touch(f"{RUNS}/done/trained_{{run}}"),
    log:
        f"{RUNS}/logs/{{run}}.log",
    params:
        fork=lambda w: CHANGES[w.run],
    shell:
        f"{LMDYN} fork {{params.fork}} --out {RUNS}/{{wildcards.run}} > {{log}} 2>&1"

# The runs of the profile organism, included by Snakefile.
include: "../runs.smk"


SEEDS = [int(seed) for seed in config["seeds"]]
PARTNER = 100  # added to the seed of a language model's initialisation
OBSERVE = config.get("observe", "")  # arguments of `lmdyn analyze`
ARGUMENTS = {
    "lm": "",
    "partner": f" --config {HERE}/partner.yaml",
    "two_layers": "",
    "one_layer": " --model.init_args.config.num_hidden_layers 1",
}
YAML = {"lm": "lm", "partner": "lm", "two_layers": "repeats", "one_layer": "repeats"}
OBSERVERS = {"lm": "observers", "two_layers": "observers_repeats", "one_layer": "observers_repeats"}


wildcard_constraints:
    model="lm|partner|two_layers|one_layer",
    seed=r"\d+",


rule trained:
    input:
        expand(f"{RUNS}/done/{{model}}_{{seed}}", model=ARGUMENTS, seed=SEEDS),


def arguments(model, seed):
    """The configuration of a model."""
    init = int(seed) + (PARTNER if model == "partner" else 0)
    return f"--config {HERE}/{YAML[model]}.yaml{ARGUMENTS[model]} --seed_everything {init} --data_seed {seed}"


rule train:
    output:
        touch(f"{RUNS}/done/{{model}}_{{seed}}"),
    log:
        f"{RUNS}/logs/{{model}}_{{seed}}.log",
    params:
        fit=lambda w: fit(f"{w.model}_{w.seed}", arguments(w.model, w.seed)),
    priority: 1 # the longest jobs first
    shell:
        "( {params.fit} ) > {log} 2>&1"


rule observe: # observers.yaml names the partner of the seed by $LMDYN_SEED
    input:
        f"{RUNS}/done/{{model}}_{{seed}}",
        lambda w: [f"{RUNS}/done/partner_{w.seed}"] if w.model == "lm" else [],
        lambda w: f"{HERE}/{OBSERVERS[w.model]}.yaml",
    output:
        touch(f"{RUNS}/done/observed_{{model}}_{{seed}}"),
    log:
        f"{RUNS}/logs/observe_{{model}}_{{seed}}.log",
    params:
        observers=lambda w: f"{HERE}/{OBSERVERS[w.model]}.yaml",
    shell:
        f"LMDYN_SEED={{wildcards.seed}} {LMDYN} analyze {RUNS}/{{wildcards.model}}_{{wildcards.seed}} "
        f"--config {{params.observers}} {OBSERVE} > {{log}} 2>&1"


RUN_FOLDERS = [f"{RUNS}/{model}_{seed}" for model in OBSERVERS for seed in SEEDS]


rule report:
    input:
        expand(f"{RUNS}/done/observed_{{model}}_{{seed}}", model=OBSERVERS, seed=SEEDS),
    output:
        f"{RUNS}/report/index.html",
    log:
        f"{RUNS}/logs/report.log",
    params:
        runs=RUN_FOLDERS,
    shell:
        f"{LMDYN} report {{params.runs}} --out {RUNS}/report > {{log}} 2>&1"


include: "../results.smk"

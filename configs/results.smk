# The end of a chain: what it has cost, its records and its claims; included after the rule `report`.
#
# Needs RUN_FOLDERS, the runs that claims are about. A profile says `records: docs/records` to keep the records of its runs
# in docs/records/<study>/<profile>, with what they cost, and `claims: true` to have its study's claims judged.
# What a report is of stands by itself, too: of a rule whose output is there, Snakemake does not make inputs that are missing
# (a seed that was added).
RESULTS = [f"{RUNS}/costs.json", *rules.report.input, *rules.report.output]


rule costs: # of all that was started here, what was killed included
    input:
        rules.report.output,
    output:
        f"{RUNS}/costs.json",
    shell:
        f"{sys.executable} -m lmdyn.cli.studies.costs {RUNS}"


if config.get("claims"):
    RESULTS += [f"{RUNS}/claims.md"]

    rule claims:
        input:
            rules.report.output,
            rules.costs.output,
        output:
            f"{RUNS}/claims.md",
        log:
            f"{RUNS}/logs/claims.log",
        params:
            runs=RUN_FOLDERS,
        shell:
            f"{LMDYN} claims {STUDY} {{params.runs}} --markdown {{output}} --out {RUNS}/report > {{log}} 2>&1"


if config.get("records"):
    RECORDS = f"{config['records']}/{STUDY}/{PROFILE}"
    RESULTS += [f"{RECORDS}/runs.json"]

    rule records:
        input:
            rules.report.output,
            rules.costs.output,
        output:
            f"{RECORDS}/runs.json",
        log:
            f"{RUNS}/logs/records.log",
        params:
            runs=RUN_FOLDERS,
        shell:
            f"{LMDYN} records {{params.runs}} --out {RECORDS} > {{log}} 2>&1 && cp {RUNS}/costs.json {RECORDS}/costs.json"

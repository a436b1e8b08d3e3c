# The end of a chain: its costs, records and claims; included after the rule `report`.
#
# Requires RUN_FOLDERS, the runs that claims are about. In a profile, `records: docs/records` keeps the records of its runs
# in docs/records/<study>/<profile>, with their costs, and `claims: true` judges the claims of its study.
# The inputs of the report are also listed: if a rule's output exists, Snakemake does not make its missing inputs
# (such as a seed that was added).
RESULTS = [f"{RUNS}/costs.json", *rules.report.input, *rules.report.output]


rule costs: # of everything started here, including killed processes
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

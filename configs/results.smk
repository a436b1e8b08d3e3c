# The end of a chain: its records and claims; included after the rule `report`.
#
# Requires RUN_FOLDERS, the runs that claims are about. In a profile, `records: docs/records` keeps the records of its runs
# in docs/records/<study>/<profile>, and `claims: true` judges the claims of its study.
# The inputs of the report are also listed: if a rule's output exists, Snakemake does not make its missing inputs
# (such as a seed that was added).
RESULTS = [*rules.report.input, *rules.report.output]


if config.get("claims"):
    RESULTS += [f"{RUNS}/claims.md"]

    rule claims:
        input:
            rules.report.output,
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
        output:
            f"{RECORDS}/runs.json",
        log:
            f"{RUNS}/logs/records.log",
        params:
            runs=RUN_FOLDERS,
        shell:
            f"{LMDYN} records {{params.runs}} --out {RECORDS} > {{log}} 2>&1"

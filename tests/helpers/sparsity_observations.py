"""What the observers of the sparsity study write of a model in which the truth is known."""

import pandas as pd

from tests.helpers.observed_runs import rows

STEPS = [0, 100, 250, 333, 750, 1000]
SITES = {"embedding": "embedding", "rnn_a": "rnn.a", "rnn_b": "rnn.b", "logits": "decoder"}
SAMPLES = [
    "", "no_top20", "count100", "count100_no_top20",
    *(f"{c}{end}" for c in ("open", "closed") for end in ("", "_no_top20", "_matched")),
]  # fmt: skip
CLASS_BANDS = [f"{c}_{b}" for c in ("open", "closed") for b in ("300-999", "1000-2999", "matched")]
BANDS = ["0-9", "10-99", "100-999", "1000+", *CLASS_BANDS]


def curve(start, end):
    """From one value to another, linear in steps."""
    return {step: start + (end - start) * step / STEPS[-1] for step in STEPS}


def observations(
    jitter, *, rho=None, chi=None, words=1000, entropy=6.0, loss=4.0, per_step=1000, rates=(), rate=20.0
):
    """What Sparsity and LearningCurves write of a model; ρ by (what, site, role, sample) and χ by sample, as curves."""
    rho, chi, found = rho or {}, chi or {}, []

    def add(quantity, values, site="", role="", sample=""):
        found.extend((step, quantity, site, role, sample, value) for step, value in values.items())

    for site in SITES:
        for role in ("target", "input"):
            for sample in SAMPLES:
                for what in ("activation", "gradient", "l1_gradient"):
                    values = rho.get((what, site, role, sample), rho.get((what, site, role), curve(0, 0)))
                    values = {step: v + jitter for step, v in values.items()}
                    add(f"rho_{what}", values, site, role, sample)
                    add(f"rho_{what}_error", dict.fromkeys(STEPS, 0.01), site, role, sample)
    for sample in BANDS:
        values = {step: v + 0.001 * jitter for step, v in chi.get(sample, curve(0.0816, 0.0885)).items()}
        add("chi_gradient_types", values, "rnn_b", "target", sample)
        add("chi_gradient_types_error", dict.fromkeys(STEPS, 1e-5), "rnn_b", "target", sample)
    for role in ("target", "input"):
        for sample in {*SAMPLES, *BANDS}:
            add("words", dict.fromkeys(STEPS, words), "", role, sample)
    add("unigram_entropy", dict.fromkeys(STEPS, entropy))
    add("chi_uniform", dict.fromkeys(STEPS, 0.0816), "rnn_b")
    add("chi_gaussian", dict.fromkeys(STEPS, 0.0885), "rnn_b")
    add("learning_rate", dict(zip(STEPS, rates, strict=False)))
    columns = ["step", "quantity", "site", "role", "pos_class", "value"]
    sparsity = pd.DataFrame(found, columns=columns).assign(word=None, upos="")
    sparsity["tokens"] = sparsity["step"] * per_step
    of_all = {"loss": loss, "learning_rate": rate}
    curves = pd.concat([rows(name, dict.fromkeys(STEPS, v), by="", group="") for name, v in of_all.items()])
    return {
        "sparsity": ("lmdyn.callbacks.Sparsity", {"sites": SITES}, sparsity),
        "learning_curves": ("lmdyn.callbacks.LearningCurves", {}, curves),
    }

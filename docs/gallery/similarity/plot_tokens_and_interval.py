"""
How much does the interval of a measure depend on the number of tokens?
=======================================================================

This script compares two seeds of a language model on 500 to 8,000 tokens of the same text. With ``jackknife``,
:class:`~lmdyn.callbacks.Similarity` divides the text into blocks of sentences, and leaves out each block in turn. The
observer reports a corrected value and its standard error over texts.
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

from lmdyn.callbacks import Checkpoint, Similarity

run, other = shared_runs.lstm(seed=1), shared_runs.lstm(seed=2)
reference = Checkpoint(other.folder, "lmdyn.models.LSTMLanguageModel")
TOKENS = [500, 1000, 2000, 4000, 8000]
found = {}
for tokens in TOKENS:
    observer = Similarity(
        reference={"other": reference}, pairs=[["h2", "h2"]], measures=["svcca_20", "debiased_linear_cka"],
        max_tokens=tokens, jackknife=20,
    )  # fmt: skip
    found[tokens] = run.observe(observer, steps=[run.last]).set_index("quantity")["value"]
table = pd.DataFrame(found).T

figure, panels = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained")
for i, (name, label) in enumerate(
    {"svcca_20": "SVCCA of 20 directions", "debiased_linear_cka": "debiased CKA"}.items()
):
    value, error = table[f"{name}_corrected"], table[f"{name}_error"]
    panels[0].errorbar(TOKENS, value, 2.09 * error, marker="os"[i], capsize=3, label=label)
    panels[1].loglog(TOKENS, error, marker="os"[i], label=label)
panels[1].loglog(
    TOKENS, table["svcca_20_error"].iloc[-1] * (8000 / pd.Series(TOKENS)) ** 0.5, "k:", label="1/√tokens"
)
panels[0].set(xlabel="tokens", ylabel="similarity and 95 % interval", xscale="log", ylim=(0.6, 1))
panels[1].set(xlabel="tokens", ylabel="standard error over texts")
panels[1].set_yticks(ticks := [0.001, 0.002, 0.005, 0.01, 0.02], [f"{tick:g}" for tick in ticks])
for ax in panels:
    ax.set_xticks(TOKENS, [f"{n:,}" for n in TOKENS])
    ax.minorticks_off()
panels[1].legend(frameon=False, fontsize=8)

# %%
# The intervals (Student's t, 19 degrees of freedom) are for this pair of models on other text. From 1,000 to 8,000
# tokens, both errors decrease to less than a half. The errors do not describe the variation over seeds. To measure the
# variation over seeds, train more seeds.
errors = table[["svcca_20_error", "debiased_linear_cka_error"]]
print(errors.round(4).to_string())
assert (errors.loc[8000] < errors.loc[1000] / 2).all()

"""
Is the gradient sparser for frequent words?
===========================================

:class:`~lmdyn.callbacks.Sparsity` measures the concentration χ = ‖v‖₂/‖v‖₁ of the gradient at a layer, averaged over
the occurrences of each word. The observer also measures the correlation ρ of χ with the frequency of the word in the
training text.
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

run = shared_runs.lstm()
rows = pd.read_parquet(run.folder / "observations" / "sparsity").query("role == 'target'")
curves = rows[rows["word"].isna() & (rows["pos_class"] == "no_top20")]
rho, error = (
    curves[curves["quantity"] == name].pivot(index="step", columns="site", values="value")
    for name in ("rho_gradient", "rho_gradient_error")
)

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for site, label, marker in (("h1", "first layer", "s"), ("h2", "last layer", "o")):
    ax.errorbar(rho.index, rho[site], error[site], marker=marker, ms=4, capsize=2, label=label)
ax.axhline(0, color="0.7", lw=0.8)
ax.set(xlabel="optimizer updates", ylabel="ρ of χ with word frequency", xscale="symlog", xlim=(-0.1, None))
ax.legend(frameon=False, title="gradient at the")

# %%
# The bars are standard errors over words. The figure leaves out the twenty most frequent words, because a few extreme
# points can produce a correlation. At the end, the gradient at the last layer is sparser for more frequent predicted
# words. ρ is several standard errors above 0. ρ is also above the floor, the ρ of the untrained model.
end = rho.index[-1]
untrained, trained = (f"{rho['h2'][s]:.2f} ± {error['h2'][s]:.2f}" for s in (0, end))
words = rows[(rows["quantity"] == "words") & (rows["pos_class"] == "no_top20")]["value"].iloc[-1]
print(f"ρ at the last layer, {words:.0f} words: {untrained} untrained, {trained} after {end} updates")
assert rho["h2"][end] > 3 * error["h2"][end]
assert rho["h2"][end] > rho["h2"][0] + 3 * error["h2"][0]

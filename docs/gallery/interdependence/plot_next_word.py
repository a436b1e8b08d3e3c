"""
What does the next word depend on?
==================================

Two words are interdependent if their joint contribution to the state of an LSTM is not the sum of their single
contributions. :class:`~lmdyn.callbacks.Interdependence` splits the state with contextual decomposition. For each
distance between two words, the observer averages over all pairs of words in 3,000 tokens (Saphra & Lopez 2020).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import Interdependence

run = shared_runs.lstm()
rows = run.observe(Interdependence(max_distance=6, max_tokens=3000), steps=[0, run.last])
rows = rows[
    rows["syntactic"].isna() & rows["pos_class"].isna() & rows["word"].isna() & rows["distance"].notna()
]
at = rows.pivot(index="distance", columns=["step", "site", "quantity"], values="value")

figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.6), layout="constrained")
for step, style, label in ((0, "k:", "untrained"), (run.last, "C0o-", "trained")):
    di = at[step]["logits"]
    left.plot(di.index, di["di"], style, ms=4, label=label)
    left.fill_between(di.index, di["di_low"], di["di_high"], alpha=0.3, color=style[:-2] or "C0", lw=0)
    right.errorbar(
        di.index,
        di["syntactic_correlation"],
        1.96 * di["syntactic_correlation_error"],
        fmt=style,
        ms=4,
        capsize=2,
        label=label,
    )
left.set(xlabel="words apart", ylabel="interdependence, in logits", ylim=(0, None))
right.axhline(0, color="0.7", lw=0.8, zorder=0)
right.set(xlabel="words apart", ylabel="ρ of interdependence with\ndistance in the syntactic tree")
right.legend(frameon=False, fontsize=8)

# %%
# The next word depends mostly on the nearest words, because interdependence decreases with distance. Training causes
# the interdependence, because the contributions nearly add up in a random network. At equal distance in the sentence,
# interdependence depends on the syntactic tree. The correlation ρ is above 0, so words that are further apart in the
# tree are more interdependent. For the untrained model, ρ is about 0. The bars show 95 % intervals over sentences.
trained, untrained = at[run.last]["logits"], at[0]["logits"]
print(trained[["di", "syntactic_correlation", "pairs"]].round(3).to_string())
assert trained["di"].is_monotonic_decreasing and (trained["di_low"] > 3 * untrained["di_high"]).all()
assert (trained["syntactic_correlation"] > 3 * trained["syntactic_correlation_error"]).all()
assert untrained["syntactic_correlation"].abs().max() < 0.15

"""
When does an ALBERT learn to reproduce words, and when to predict words?
========================================================================

:class:`~lmdyn.callbacks.TokenLearning` tests two abilities of a masked language model. Reconstruction is the ability to
reproduce a visible word, and prediction is the ability to predict a masked word. The observer groups the words by their
part of speech (Chiang, Huang & Lee 2020).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import TokenLearning
from lmdyn.datamodules import SpanCorpus

run = shared_runs.albert()
sentences = SpanCorpus(
    run.data.corpus, tasks=[]
)  # the corpus, one sentence a row, with the words that pieces belong to
observer = TokenLearning(probe=sentences, by=["pos"], bands=[], max_words=500, max_tokens=2500)
rows = run.observe(observer)
overall, of_pos = rows[rows["by"].eq("")], rows[rows["by"].eq("pos")]
curves = overall.pivot(index="step", columns="quantity", values="value")
groups = of_pos.pivot(index="step", columns=["quantity", "group"], values="value")

figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, quantity in zip(panels, ("reconstruction", "prediction"), strict=True):
    for marker, group in zip("os^D", ("determiner", "preposition", "verb", "noun"), strict=True):
        ax.plot(groups.index, groups[quantity][group], marker=marker, ms=4, label=group)
    ax.plot(curves.index, curves[quantity], color="0.5", label="all words")
    ax.set(title=quantity, xlabel="optimizer updates", xscale="symlog", xlim=(0, None), ylim=(0, 1))
panels[0].set_ylabel("share of words that are right")
panels[0].legend(frameon=False, fontsize=8, loc="upper left")

# %%
# The model learns reconstruction first, and with a higher accuracy. At the end, the model reproduces most visible
# words, but does not predict most masked words. Masked function words are easier than masked content words, because the
# model has more content words to choose from. The floor of prediction is the plateau that the model reaches within ten
# updates and keeps up to step 56. On the plateau, the model predicts the most frequent tokens in any sentence.
floor = curves["prediction"].loc[10:60].max()
end, masked = run.last, overall.query("quantity == 'masked_words'")["value"].iloc[-1]
print(f"step {end}: {curves['reconstruction'][end]:.2f} of all words reconstructed, ", end="")
print(f"{curves['prediction'][end]:.2f} of {masked:.0f} masked ones predicted (floor {floor:.2f})")
assert (curves["reconstruction"][100:] >= curves["prediction"][100:]).all()
assert curves["prediction"].loc[10:60].min() > floor - 0.02
assert curves["reconstruction"][end] > 0.5 > curves["prediction"][end] > floor + 0.05
assert (
    groups["prediction"].loc[end, ["determiner", "preposition"]].min()
    > groups["prediction"].loc[end, ["verb", "noun"]].max()
)

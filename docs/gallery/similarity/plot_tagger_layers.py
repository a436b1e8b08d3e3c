"""
Which layer of a language model is similar to a tagger?
=======================================================

A part-of-speech tagger knows one linguistic category and nothing else. :class:`~lmdyn.callbacks.Similarity` compares
the layers of a language model with the layer of the tagger, at each checkpoint of the language model. The measure is
SVCCA over 5,000 tokens. The floor is a tagger that was trained on shuffled labels. A tagger with shuffled labels can
only memorise the labels (Saphra & Lopez 2019).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import Checkpoint, Similarity

run, tagger, shuffled = shared_runs.lstm(), shared_runs.tagger(), shared_runs.tagger(shuffled=True)
observer = Similarity(
    reference={
        "tagger": Checkpoint(tagger.folder, "lmdyn.models.LSTMTagger"),
        "shuffled": Checkpoint(shuffled.folder, "lmdyn.models.LSTMTagger"),
    },
    pairs=[["embedding", "h1"], ["h1", "h1"], ["h2", "h1"]],  # of the language model, of the tagger
    max_tokens=5000,
)
rows = run.observe(observer)
curves = rows[rows["quantity"] == "svcca"].pivot(index="step", columns=["reference", "site"], values="value")

labels = {"embedding": "word vectors", "h1": "first layer", "h2": "last layer"}
figure, panels = plt.subplots(1, 3, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, (site, label) in zip(panels, labels.items(), strict=True):
    ax.plot(curves.index, curves["tagger"][site], "o-", ms=4, label="tagger")
    ax.plot(curves.index, curves["shuffled"][site], "k:", label="tagger of shuffled labels")
    ax.set(title=label, xscale="symlog", xlim=(0, None), ylim=(0, 1), xlabel="optimizer updates")
panels[0].set_ylabel("SVCCA with the tagger's layer")
panels[0].legend(frameon=False, fontsize=8, loc="lower left")

# %%
# At the end, both layers of the LSTM are above their floor, but the word vectors are not. The part of speech of the
# next word depends on the words before it. At the beginning of training, a few directions contain 99 % of the variance.
# SVCCA is then meaningless: the floor follows the curve, or is above the curve.
beyond = (curves["tagger"] - curves["shuffled"]).rename(columns=labels)
print("SVCCA beyond the floor, one seed:", beyond.iloc[[0, -1]].round(2), sep="\n")
assert beyond.iloc[-1][["first layer", "last layer"]].min() > 0.15
assert beyond.iloc[-1]["word vectors"] < 0.05
assert beyond.iloc[0].max() < 0.05

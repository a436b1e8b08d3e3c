"""
When does a model learn agreement?
==================================

:class:`~lmdyn.datamodules.GrammarPairs` makes minimal pairs from sentences of the embedded corpus.
:class:`~lmdyn.callbacks.MinimalPairs` measures how often an LSTM gives the right sentence of a pair the higher
probability. A determiner agrees with the noun after the determiner. A verb agrees with its subject, which may be
several words before the verb. Some of the nouns between the two may have the other number. These nouns are called
*attractors*. In a control paradigm, neither sentence of a pair is better.
"""

import lightning as L
import matplotlib.pyplot as plt
import shared_runs
import torch

from lmdyn.callbacks import MinimalPairs, ScheduledCheckpoint, Steps
from lmdyn.datamodules import GrammarPairs
from lmdyn.models import LSTMLanguageModel

# few words, so that the model sees each form often
data = shared_runs.grammar(**shared_runs.FEWER, n_test_tokens=30_000)
L.seed_everything(1)
model = LSTMLanguageModel(
    embedding_size=64, hidden_size=64, optimizer=lambda params: torch.optim.Adam(params, lr=5e-3),
    anneal_factor=None,
)  # fmt: skip
folder = shared_runs.folder("agreement")
saver = ScheduledCheckpoint(Steps(at=(0, 10, 30, 100, 200, 400, 600, 800, 1000, 1200, 1500)))
trainer = L.Trainer(default_root_dir=folder, callbacks=[saver], max_steps=1500, **shared_runs.QUIET)
trainer.fit(model, datamodule=data)

run = shared_runs.Trained(folder, LSTMLanguageModel, data)
table = run.observe(MinimalPairs(probe=GrammarPairs(data, n_pairs=300)))
of = {
    name: rows.pivot(index="step", columns="group", values="value")
    for name, rows in table[table["by"].eq("paradigm")].groupby("quantity")
}
verbs = table[table["by"].eq("attractors")].pivot(index="step", columns=["quantity", "group"], values="value")
between = [group for group in verbs["pairs"] if group != "0"]
n = verbs["pairs"][between]
attracted = (verbs["accuracy"][between] * n).sum(axis=1) / n.sum(axis=1)
attractors = {"no attractor": verbs["accuracy"]["0"], "one attractor or more": attracted}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
styles = {"determiner_agreement": "-", "verb_agreement": "--", "anaphor_agreement": "-.", "control": ":"}
for rule, style in styles.items():
    course = of["accuracy"][rule]
    (line,) = left.plot(course.index, course, style, marker=".", label=rule.replace("_", " "))
    low, high = of["accuracy_low"][rule], of["accuracy_high"][rule]
    left.fill_between(course.index, low, high, color=line.get_color(), alpha=0.15, lw=0)
for (name, course), style in zip(attractors.items(), ("-", "--"), strict=True):
    right.plot(course.index, course, style, color="C1", marker=".", label=name)
for ax, title in ((left, "all pairs, with 95 % intervals"), (right, "verb agreement")):
    ax.axhline(0.5, color="0.4", ls=":", lw=0.9)
    ax.set(title=title, xlabel="optimizer updates", xlim=(0, None), ylim=(0, 1.02))
    ax.legend(frameon=False, fontsize=8, loc="lower right" if ax is left else "lower left")
left.set_ylabel("accuracy")

# %%
# For 600 updates, the model prefers the right determiner in about half of the pairs. It then learns the agreement
# of determiners within 400 updates. The agreement of verbs is learned more slowly, and only where no attractor
# stands between subject and verb. The accuracy of the 30 pairs with an attractor stays below that of other pairs and
# does not exceed chance. For the 60 pairs with an anaphor, the accuracy varies around chance. The control also stays at
# chance.
accuracy, lowest = of["accuracy"], of["accuracy_low"]
print(accuracy[list(styles)].round(2).to_string())
print({name: round(float(course.iloc[-1]), 2) for name, course in attractors.items()})
assert accuracy["determiner_agreement"][600] < 0.6 < 0.9 < accuracy["determiner_agreement"][1000]
assert lowest["verb_agreement"].iloc[-1] > 0.6 and abs(accuracy["control"].iloc[-1] - 0.5) < 0.06
assert attracted.iloc[-1] < 0.6 < attractors["no attractor"].iloc[-1]

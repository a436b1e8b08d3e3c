"""
Which rules of grammar does a model learn first?
================================================

Each pair has a sentence of the embedded corpus, and the same sentence with one rule broken. The rules are the number of
a verb or of a determiner, the order of determiner and noun, and the presence of a verb.
:class:`~lmdyn.callbacks.MinimalPairs` measures how often a model gives the right sentence the higher probability
(Warstadt et al. 2020). In a control paradigm, neither sentence of a pair is better. The sentences of a control pair
differ in a name, and the script calls one sentence right at random.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import shared_runs

from lmdyn.analysis import flips, onset
from lmdyn.callbacks import MinimalPairs
from lmdyn.datamodules.grammar.grammar_tasks import corruptions

run = shared_runs.lstm()
random = np.random.default_rng(0)
names = [lexeme.lemma for lexeme in run.data.grammar.lexemes["PROPN"] if lexeme.kind == "person"]
rows = []
for document in run.data.documents("test"):
    for sentence in document.sentences:
        broken = corruptions(sentence, run.data.grammar, random)
        rows += [(sentence.words, bad, rule) for rule, bad in broken.items()]
        if people := [i for i, word in enumerate(sentence.words) if word in names]:
            other = list(sentence.words)
            other[people[0]] = random.choice([name for name in names if name != sentence.words[people[0]]])
            pair = (sentence.words, other)
            rows.append((*(pair if random.random() < 0.5 else pair[::-1]), "control"))


class Pairs:
    """Any object with ``pairs`` can be the probe; ``PairFiles`` reads files."""

    pairs = pd.DataFrame({"good": [" ".join(r[0]) for r in rows], "bad": [" ".join(r[1]) for r in rows]})
    pairs = pairs.assign(
        paradigm=[r[2] for r in rows], pair=range(len(rows)), field="", term="", attractors=""
    )
    pairs = pairs.assign(file="test split", line=range(len(rows)))


table = run.observe(MinimalPairs(probe=Pairs()))
of = {
    name: table[table["by"].eq("paradigm") & table["quantity"].eq(name)].pivot(
        index="step", columns="group", values="value"
    )
    for name in ("accuracy", "accuracy_low", "accuracy_high", "pairs")
}
accuracy, steps = of["accuracy"], list(of["accuracy"].index)
onsets = {rule: onset(steps, accuracy[rule], of["pairs"][rule].iloc[0], above=True) for rule in accuracy}

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for rule, style in {
    "word_order": "-",
    "verb_agreement": "--",
    "determiner_agreement": "-.",
    "control": ":",
}.items():
    (line,) = ax.plot(steps, accuracy[rule], style, marker=".", label=rule.replace("_", " "))
    ax.fill_between(
        steps, of["accuracy_low"][rule], of["accuracy_high"][rule], color=line.get_color(), alpha=0.15
    )
ax.axhline(0.5, color="0.4", ls=":", lw=0.9)
ax.set(xlabel="optimizer updates", ylabel="accuracy", xscale="symlog", xlim=(0, None), ylim=(0, 1.02))
ax.legend(frameon=False, fontsize=8)

# %%
# The model learns the order within few updates. At first, the model prefers the wrong order in almost all pairs, and
# later the right order in almost all pairs. The figure does not show that the model learns agreement. The model is
# right as often as at step 0, when it prefers the right form of some frequent pairs by chance. If an onset is at step
# 0, the onset is a preference of the untrained model. The accuracy of the control paradigm stays at chance.
print({rule: (step, round(accuracy[rule].iloc[-1], 2)) for rule, step in onsets.items()})
ratios = table[table["quantity"].eq("log_ratio")].pivot(
    index="step", columns=["group", "pair"], values="value"
)
print(f"a pair of word order changes sides {flips(ratios['word_order']).mean():.1f} times on average")
assert (
    accuracy["word_order"].min() < 0.1 < 0.9 < accuracy["word_order"].iloc[-1] and onsets["word_order"] > 10
)
assert of["accuracy_low"]["verb_agreement"].iloc[-1] < accuracy["verb_agreement"].iloc[0]
assert onsets["verb_agreement"] == 0 and onsets["control"] is None

if "--keep" in sys.argv:  # the numbers of docs/observers/minimal_pairs.md
    shared_runs.keep(table[table["by"] == "paradigm"], "minimal_pairs")

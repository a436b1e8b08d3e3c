"""
Which noun completes the sentence?
==================================

:class:`~lmdyn.callbacks.Choices` measures how often a model gives the highest probability to the right one of several
completions, as in EWoK, COMPS or entity tracking. In this script, an item is the beginning of a sentence of the
embedded corpus, up to a noun. An item has four options: the noun that follows, and three other words. In ``any`` items,
the script draws the other words from all words. In ``nouns`` items, the script draws nouns of the same form. In
``nouns`` items, the model can recognise the right noun only by the topic and the words before the noun.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import shared_runs

from lmdyn.callbacks import Choices

run = shared_runs.lstm()
random = np.random.default_rng(0)
sentences = [sentence for document in run.data.documents("test") for sentence in document.sentences]
words = sorted({word for sentence in sentences for word in sentence.words})
nouns = {
    tag: sorted({w for s in sentences for w, t in zip(s.words, s.xpos, strict=True) if t == tag})
    for tag in ("NN", "NNS")
}
rows = []
for number, sentence in enumerate(sentences):
    tags = sentence.xpos
    places = [i for i, tag in enumerate(tags) if tag in nouns and i > 2]
    if not places:
        continue
    i = places[-1]
    for group, others in {"any": words, "nouns": nouns[tags[i]]}.items():
        drawn = random.choice([word for word in others if word != sentence.words[i]], 3, replace=False)
        prefix = " ".join(sentence.words[:i])
        for option, word in enumerate([sentence.words[i], *drawn]):
            rows.append({
                "item": f"{group}_{number}", "option": option, "text": f"{prefix} {word}", "begin": len(prefix),
                "right": option == 0, "group": group, "file": "test split", "line": number,
            })  # fmt: skip


class Items:
    """Any object with ``choices`` can be the probe; ``ChoiceFiles`` reads files."""

    choices = pd.DataFrame(rows)


table = run.observe(Choices(probe=Items()))
of = {
    name: table[table["quantity"].eq(name)].pivot(index="step", columns="group", values="value")
    for name in ("accuracy", "accuracy_low", "accuracy_high")
}
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for group, label in {"any": "among any words", "nouns": "among nouns of the same form"}.items():
    (line,) = ax.plot(of["accuracy"].index, of["accuracy"][group], marker=".", label=label)
    ends = of["accuracy_low"][group], of["accuracy_high"][group]
    ax.fill_between(of["accuracy"].index, *ends, color=line.get_color(), alpha=0.15)
ax.axhline(0.25, color="0.4", ls=":", lw=0.9, label="chance")
ax.set(xlabel="optimizer updates", ylabel="accuracy", xscale="symlog", xlim=(0, None), ylim=(0, 1.02))
ax.legend(frameon=False, fontsize=8)

# %%
# For some fifty updates, the model knows only frequencies. Among nouns of the same form, frequencies help at least as
# much as among any words, because many nouns are rare. Then the model learns which words can follow, and accuracy among
# any words rises to 0.6. Accuracy among nouns hardly changes: in this training, the model does not learn what a noun
# depends on.
print(of["accuracy"].round(2).to_string())
assert of["accuracy_low"]["any"].iloc[-1] > of["accuracy_high"]["nouns"].iloc[-1] > 0.25

if "--keep" in sys.argv:  # the numbers of docs/observers/choices.md
    shared_runs.keep(table[table["item"] == ""], "choices")

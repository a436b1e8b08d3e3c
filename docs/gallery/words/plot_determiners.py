"""
When does a model learn determiners?
====================================

The script trains a two-layer LSTM to predict the next word of the embedded corpus.
:class:`~lmdyn.callbacks.LearningCurves`, one of the callbacks of the ``Trainer``, measures the loss on 10,000 words of
validation text. The observer measures the loss at the scheduled steps, and groups the words by part of speech.
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

# trained by L.Trainer(callbacks=[LearningCurves(schedule=...), ...])
run = shared_runs.lstm()
rows = pd.read_parquet(run.folder / "observations" / "learning_curves")
losses = rows.query("quantity == 'loss' and by == 'upos'").pivot(
    index="step", columns="group", values="value"
)

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for tag, style in {"DET": "-", "ADP": "--", "NOUN": "-.", "VERB": ":"}.items():
    ax.plot(losses.index, losses[tag], style, marker=".", label=tag)
overall = rows.query("quantity == 'loss' and by == ''").set_index("step")["value"]
ax.plot(overall.index, overall, color="0.6", label="all words")
ax.set(
    xlabel="optimizer updates",
    ylabel="loss of the next word, nats",
    xscale="symlog",
    xlim=(0, None),
    ylim=(0, None),
)
ax.legend(frameon=False)

# %%
# At step 0, every loss is the logarithm of the number of words. Determiners are few and frequent, so word frequencies
# explain most of their loss. A model learns word frequencies first. When the loss of determiners has decreased by more
# than two nats, the loss of nouns and verbs is higher than at step 0.
fall = losses.loc[0] - losses
step = fall.index[fall["DET"] > 2][0]
print(
    f"fallen at step {step} and at the end, nats:",
    fall.loc[[step, fall.index[-1]], ["DET", "ADP", "NOUN", "VERB"]].round(1),
    sep="\n",
)
assert fall.loc[step, ["NOUN", "VERB"]].max() < 0

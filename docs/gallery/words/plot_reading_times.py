"""
How well does a model predict reading times?
============================================

People read surprising words more slowly. At each step, :class:`~lmdyn.callbacks.Reading` measures how much of the
variance of reading times a model's surprisal explains. The observer counts only variance that the length, frequency and
position of a word do not explain. The script simulates five readers. Each reader spends 12 ms more for each bit of a
trigram model of the training text. The model that fits the readers best is therefore known. To use reading times of
people, read files with ``ReadingFiles``.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import shared_runs

from lmdyn.analysis import NgramCounts, NgramModels
from lmdyn.callbacks import NgramDivergence, Reading

run = shared_runs.lstm()
data, tokenizer, random = run.data, run.data.tokenizer, np.random.default_rng(0)


def encoded(sentences):
    """Return the token ids of each sentence, after an end of text."""
    return [tokenizer.convert_tokens_to_ids(["<eos>", *sentence.words]) for sentence in sentences]


train, test = (
    [s for document in data.documents(split) for s in document.sentences] for split in ("train", "test")
)
trigrams = NgramModels(NgramCounts.of(encoded(train), len(tokenizer), 3))
counts = data.token_counts["count"]
rows = []
for number, (sentence, log_p) in enumerate(
    zip(test, trigrams.log_probabilities(3, encoded(test)), strict=True)
):
    ids = tokenizer.convert_tokens_to_ids(sentence.words)
    for i, word in enumerate(sentence.words):
        rows.append({
            "text": " ".join(sentence.words), "index": i, "word": word, "item": f"{number}/{i}", "before": i,
            "length": len(word), "frequency": np.log(1 + counts[ids[i]]), "bits": -log_p[i + 1] / np.log(2),
        })  # fmt: skip
words = pd.DataFrame(rows).assign(file="test split", line=range(len(rows)))
readers = [words.assign(subject=f"reader {reader}", own=random.normal(0, 40)) for reader in range(5)]
times = pd.concat(readers, ignore_index=True)
noise = random.normal(0, 80, len(times))
times["ms"] = 450 + times["own"] + 6 * times["length"] - 4 * times["frequency"] + 12 * times["bits"] + noise


class Times:
    """Any object with ``reading_times`` and ``times`` can be the probe; ``ReadingFiles`` reads files."""

    reading_times = times.drop(columns=["own", "bits"])
    times = ("ms",)


table = run.observe(Reading(probe=Times()))
nearest = run.observe(NgramDivergence(order=3, drawn_tokens=0, max_tokens=2000))
fits = table[table["baseline"] == "word"].pivot(index="step", columns="quantity", values="value")

figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
panels[0].plot(fits.index, 100 * fits["partial_r2"], "o-", label="the model's surprisal")
panels[0].plot(fits.index, 100 * fits["chance"], ":", color="0.4", label="noise")
panels[0].set(ylabel="variance explained beyond the baseline (%)", ylim=(0, None))
of = nearest["quantity"].eq("kl") & nearest["smoothing"].eq("kneser_ney") & nearest["order"].eq(3)
panels[1].plot(nearest[of]["step"], nearest[of]["value"], "s-", label="from the trigrams of the readers")
panels[1].set(ylabel="divergence in bits", ylim=(0, None))
for ax in panels:
    ax.set(xlabel="optimizer updates", xscale="symlog", xlim=(0, None))
    ax.legend(frameon=False, fontsize=8)

# %%
# An untrained model explains no more than noise. For a hundred updates, the divergence falls, but the model's surprisal
# explains no more of the times than length, frequency and position do. During the first hundred updates, the model
# learns frequencies, which are already in the baseline. The slope (ms per bit) is the slope of the model's surprisal.
# This slope need not be the slope of the trigrams in the simulation.
print(fits[["partial_r2", "chance", "delta_log_likelihood", "slope", "slope_error"]].round(4).to_string())
assert fits["partial_r2"].loc[:20].max() < 0.001 < 0.02 < fits["partial_r2"].iloc[-1]

if "--keep" in sys.argv:  # the numbers of docs/observers/reading.md
    shared_runs.keep(table[table["item"] == ""], "reading")

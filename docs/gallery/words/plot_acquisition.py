"""
When does a model acquire a word?
=================================

:class:`~lmdyn.callbacks.Surprisals` measures the surprisal of each word for the LSTM of the gallery, as a mean over the
contexts of the word. :func:`~lmdyn.analysis.word_acquisition` fits a sigmoid to the surprisals of each word. The
function finds the step at which the sigmoid falls one bit below the surprisal by frequency. From this step on, the
model knows more about the word than its frequency. The criterion of Chang & Bergen (2022) is half-way to the word's own
lowest surprisal.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.analysis import acquisition_regression, word_acquisition
from lmdyn.callbacks import Surprisals

run = shared_runs.lstm()
table = run.observe(Surprisals())
ages = word_acquisition(table)
published = word_acquisition(table, "2022", vocabulary=len(run.data.tokenizer))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
courses = table[table["quantity"].eq("surprisal")].pivot(index="step", columns="word", values="value")
learned = ages[ages["censored"].eq("interval")].sort_values("age")
for i, (word, age) in enumerate(zip(learned["word"].iloc[::20], learned["age"].iloc[::20], strict=True)):
    (line,) = left.plot(courses.index, courses[word], color=f"C{i}", marker=".", label=word)
    left.axvline(age, color=line.get_color(), lw=0.8, ls=":")
left.plot(courses.index, courses[""], "k--", label="mean of all words")
left.set(xlabel="optimizer updates", ylabel="surprisal (bits)", xscale="symlog", xlim=(0, None))
left.legend(frameon=False, fontsize=8)
for name, look in {"interval": "o", "right": "^", "left": "v"}.items():
    of = ages[ages["censored"].eq(name)]
    label = {"interval": "acquired", "right": "not acquired", "left": "from the start"}[name]
    right.plot(of["unigram"], of["age"], look, ms=4, alpha=0.6, label=label)
right.set(xlabel="surprisal by frequency (bits)", ylabel="age (optimizer updates)", yscale="log")
right.legend(frameon=False, fontsize=8)

# %%
# After 312 updates, the model has acquired six of ten words. The relative criterion is half-way to the word's lowest
# surprisal. With the relative criterion, nearly every word has an age, even a word that the model hardly knows. The
# absolute criterion depends on frequency, because an untrained model gives all words the same surprisal. For the rarest
# words, the surprisal of the untrained model is already below the surprisal by frequency. The rarest words therefore
# count as acquired from the start, and rare words reach their cutoff earlier than frequent words. If the model does not
# acquire a word, the age of the word is censored: the age is above the last step. Least squares ignores this censoring,
# and finds about half of the effect that the censored regression finds.
print(ages["censored"].value_counts().to_dict(), published["censored"].value_counts().to_dict())
found = {
    censoring: acquisition_regression(ages, ["unigram", "length"], censoring=censoring).coefficients
    for censoring in ("tobit", "none")
}
for name, coefficients in found.items():
    print(name, coefficients.round(3).to_string(index=False), sep="\n")
assert found["tobit"]["value"][1] < 1.3 * found["none"]["value"][1] < 0
assert published["censored"].eq("interval").mean() > ages["censored"].eq("interval").mean() > 0.3

"""
Read the parquet files: which parts of speech contribute most to the loss?
==========================================================================

Observers write tidy tables with one row for each step, quantity, site and group. ``pandas.read_parquet`` reads the
folder of an observer. polars and DuckDB can also read the folder.
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

run = shared_runs.lstm()
rows = pd.read_parquet(run.folder / "observations" / "learning_curves")
print(rows.query("by == 'upos' and group == 'NOUN'").tail(4).to_string(index=False))

# %%
# The loss of a text is the sum of the losses of its words. The contribution of a part of speech is its mean loss times
# its share of the words. The shares of the words come from the training text (``token_counts`` of the datamodule). The
# figure leaves out ends of sentences, which have no part of speech. The model predicts ends of sentences easily, so the
# parts add up to more than the loss over all tokens.
losses = rows.query("quantity == 'loss' and by == 'upos'").pivot(
    index="step", columns="group", values="value"
)
counts = run.data.token_counts[losses.columns].sum()
paid = losses * counts / counts.sum()

order = paid.iloc[-1].sort_values(ascending=False).index
top = [*order[:6]]
parts = paid[top].assign(others=paid[order[6:]].sum(axis=1))
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.stackplot(parts.index, parts.T, labels=parts.columns, alpha=0.85)
ax.set(xscale="symlog", xlim=(0, parts.index[-1]), xlabel="optimizer updates", ylabel="loss, nats per word")
handles, names = ax.get_legend_handles_labels()
ax.legend(handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

# %%
# At the end, nouns and verbs contribute most. Their contribution is larger than their share of the words, because the
# model has many nouns and verbs to choose from. Punctuation contributes less than half of its share.
share_of_words, share_of_loss = counts / counts.sum(), paid.iloc[-1] / paid.iloc[-1].sum()
both = pd.DataFrame({"of words": share_of_words, "of loss": share_of_loss}).loc[order[:6]]
print(both.round(2).to_string())
assert set(order[:2]) == {"NOUN", "VERB"}
overall = rows.query("quantity == 'loss' and by == ''")["value"].iloc[-1]
assert paid.iloc[-1].sum() > overall
assert (share_of_loss[["NOUN", "VERB"]] > 1.2 * share_of_words[["NOUN", "VERB"]]).all()
assert share_of_loss["PUNCT"] < share_of_words["PUNCT"] / 2

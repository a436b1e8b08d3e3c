"""
Which words form clusters in the independent components?
========================================================

:class:`~lmdyn.callbacks.WordClusters` finds independent components of the word vectors. A cluster is the set of words
with a value beyond 2.5 standard deviations in a component (He & Toyoizumi 2022). The observer uses neither text nor
tags. The script uses the tags only to interpret the clusters.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import WordClusters

run = shared_runs.towers()
rows = run.observe(WordClusters(words=300, components=16, learning_rate=0.1), steps=[0, run.last])
members = rows[rows["quantity"] == "membership"]
counts = run.data.token_counts.set_index("token")
tags = (
    counts.loc[counts["count"] > 0].drop(columns="count").idxmax(axis=1)
)  # the most frequent tag of each word
members = members.assign(tag=members["token"].astype(str).map(tags))
clusters = members.groupby(["step", "group"], observed=True)["tag"].agg(
    size="size", purity=lambda tag: tag.value_counts(normalize=True).iloc[0]
)
large = clusters[clusters["size"] >= 4]

last = members[members["step"] == run.last]
shown = large.loc[run.last].sort_values("size").index[-9:]
colors = dict(zip(last["tag"].value_counts().index, plt.cm.tab20.colors, strict=False))
figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
for y, group in enumerate(shown):
    words = last[last["group"] == group].sort_values("value", key=abs, ascending=False).head(9)
    for x, (word, tag) in enumerate(zip(words["token"], words["tag"], strict=True)):
        ax.text(x, y, word, color=colors[tag], ha="center", va="center", fontsize=9, fontweight="bold")
ax.set(
    xlim=(-0.6, 8.6),
    ylim=(-0.6, len(shown) - 0.4),
    xticks=[],
    yticks=range(len(shown)),
    ylabel="component and its direction",
)
ax.set_yticklabels(shown)
ax.spines["bottom"].set_visible(False)
tags_shown = [tag for tag in colors if tag in set(last[last["group"].isin(shown)]["tag"])]
handles = [plt.Line2D([], [], marker="s", ls="", color=colors[tag]) for tag in tags_shown]
figure.legend(handles, tags_shown, loc="outside lower center", ncols=9, frameon=False, fontsize=8)

# %%
# The figure shows the nine largest clusters, with the strongest words of each cluster first. After training, most words
# of a cluster have the same part of speech. Before training, the clusters are smaller, and the words of a cluster are
# unrelated. The floor is the untrained model.
average = large["purity"].groupby("step").mean()
print(
    large["size"]
    .groupby("step")
    .agg(["count", "mean"])
    .rename(columns={"count": "clusters", "mean": "words"})
    .round(1)
)
print(
    f"share of words with their cluster's most frequent tag: {average[0]:.2f} untrained, {average[run.last]:.2f}"
)
assert average[run.last] > average[0] + 0.1
assert large["size"].groupby("step").mean()[0] < large["size"].groupby("step").mean()[run.last]
assert average[run.last] > 0.5

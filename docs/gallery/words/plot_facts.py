"""
Does a model know facts, or only the most frequent answers?
===========================================================

The documents of the embedded corpus state facts, for example who works for whom, or the capital of a country.
:class:`~lmdyn.callbacks.WorldKnowledge` queries these facts with a mask in place of the object. The floor is the score
of the most frequent object of each relation, which requires no knowledge of facts (Petroni et al. 2019).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import WorldKnowledge
from lmdyn.datamodules import FactCorpus, GrammarFacts

run = shared_runs.albert()
questions = FactCorpus(GrammarFacts(run.data.corpus, template="both"))  # each fact in two wordings
rows = run.observe(WorldKnowledge(probe=questions))
of_all = rows[rows["kind"].eq("") & rows["relation"].eq("")].pivot(
    index="step", columns="quantity", values="value"
)
last = rows[(rows["step"] == run.last) & rows["relation"].ne("")]
relations = last[last["quantity"] != "hit"].pivot(index="relation", columns="quantity", values="value")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
left.plot(of_all.index, of_all["p_at_1"], "o-", ms=4, label="right answers")
left.axhline(of_all["majority"].iloc[-1], color="k", ls=":", label="most frequent object")
left.set(
    xlabel="optimizer updates",
    ylabel="P@1, mean over relations",
    xscale="symlog",
    xlim=(0, None),
    ylim=(0, 1.05),
)
left.legend(frameon=False, fontsize=8)
right.bar(relations.index.str.replace("_", " "), relations["p_at_1"], width=0.6)
right.hlines(
    relations["majority"],
    [i - 0.4 for i in range(len(relations))],
    [i + 0.4 for i in range(len(relations))],
    "k",
    ls=":",
)
right.tick_params(axis="x", rotation=40)
right.set_title(f"at step {run.last}", fontsize=10)

# %%
# At the end, the model answers some of the questions correctly. For most of the training, the model answers no question
# correctly. In no relation is the model better than the most frequent answer, so the figure does not show that the
# model knows a fact. With few facts, the floor is high, and the figure therefore shows the floor.
facts, known, right, floor = of_all.loc[run.last, ["facts", "known", "p_at_1", "majority"]]
print(f"{known:.0f} of {facts:.0f} questions answered; P@1 {right:.2f}, floor {floor:.2f}")
hits = last[last["quantity"] == "hit"]
print(hits[["fact", "prediction", "value"]].head(4).to_string(index=False))
assert of_all["known"][0] == 0 < known and (of_all["known"] == 0).mean() > 0.5
assert (relations["p_at_1"] <= relations["majority"] + 1e-9).all()

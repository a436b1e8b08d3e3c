"""
How does the rank of a layer change in training?
================================================

:class:`~lmdyn.callbacks.Geometry` measures the effective rank of a layer's activations. The measure is RankMe, the
exponential of the entropy of the singular values. The RankMe of the same number of Gaussian vectors is the upper limit.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import Geometry

run = shared_runs.lstm()
rows = run.observe(Geometry(max_tokens=4000)).query("over == 'all'")
ranks, noise = (
    rows[rows["quantity"] == name].pivot(index="step", columns="site", values="value")
    for name in ("rankme", "rankme_white_noise")
)

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for site, label in (("embedding", "word vectors"), ("h1", "first layer"), ("h2", "last layer")):
    ax.plot(ranks.index, ranks[site], "o-", ms=4, label=label)
ax.plot(noise.index, noise["h2"], "k:", label="Gaussian vectors")
ax.set(xlabel="optimizer updates", ylabel="RankMe", xscale="symlog", xlim=(-0.1, None), ylim=(0, None))
ax.legend(frameon=False)

# %%
# RankMe does not centre the vectors. Early in training, the vectors of the last layer have nearly one direction, the
# direction of their mean, and the rank falls to 1. The rank rises when the model learns more than the frequencies of
# the words. The curve of one seed is weak evidence. ``lmdyn phases`` finds the bends of each curve, and compares the
# bends over seeds.
course = ranks["h2"]
lowest = course.idxmin()
print(
    f"last layer: {course.iloc[0]:.1f} untrained, {course[lowest]:.1f} at step {lowest}, {course.iloc[-1]:.1f} at last"
)
assert course[lowest] < course.iloc[0] < course.iloc[-1] < noise["h2"].iloc[-1]

"""
How does the rank of a layer change in training?
================================================

:class:`~lmdyn.callbacks.Geometry` measures the effective rank of a layer's activations: RankMe, the exponential of the
entropy of their singular values. What as many Gaussian vectors have is the upper end.
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
# The vectors are not centred. At first, the vectors of the last layer have nearly one direction, which is their mean.
# The rank falls to 1, and rises when the model learns more than the words' frequencies. The curve of one seed shows
# little: ``lmdyn phases`` finds the bends of each curve, and compares the bends over seeds.
course = ranks["h2"]
lowest = course.idxmin()
print(
    f"last layer: {course.iloc[0]:.1f} untrained, {course[lowest]:.1f} at step {lowest}, {course.iloc[-1]:.1f} at last"
)
assert course[lowest] < course.iloc[0] < course.iloc[-1] < noise["h2"].iloc[-1]

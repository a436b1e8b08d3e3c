"""
Which heads are diagonal, and which heads are vertical?
=======================================================

:class:`~lmdyn.callbacks.AttentionPatterns` averages the attention of each head over a text. A diagonal head attends to
the neighbours of a token. A vertical head attends to the special tokens at the beginning and end of a row (Kovaleva et
al. 2019). The model is an ALBERT that applies its only layer three times, so the sites are ``layer@0``, ``layer@1`` and
``layer@2``.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import AttentionPatterns

run = shared_runs.albert()
rows = run.observe(AttentionPatterns(max_tokens=4000, size=24), steps=[0, run.last])
maps = rows[(rows["quantity"] == "map") & (rows["step"] == run.last)]
scores = rows[rows["quantity"].isin(["diagonal", "vertical"])].pivot(
    index=["step", "site", "head"], columns="quantity", values="value"
)

figure, panels = plt.subplots(2, 3, figsize=(7.6, 5.2), layout="constrained", sharex=True, sharey=True)
for (site, head), cells in maps.groupby(["site", "head"], observed=True):
    ax = panels[int(head), int(site.removeprefix("layer@"))]
    weights = cells.pivot(index="query", columns="key", values="value")
    image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=maps["value"].max())
    diagonal, vertical = scores.loc[(run.last, site, head)]
    ax.set_title(f"{site}, head {head}\ndiagonal {diagonal:.2f}, vertical {vertical:.2f}", fontsize=9)
figure.supxlabel("position attended to", fontsize=10)
figure.supylabel("position of the token", fontsize=10)
figure.colorbar(image, ax=panels, label="mean attention", shrink=0.7)

# %%
# The untrained heads distribute their attention evenly. The floor is the weight of the untrained heads on two
# neighbours, or on the special tokens. All trained heads are diagonal above this floor, most strongly in the second and
# third application. No head is vertical: the trained heads give the special tokens less weight than the untrained
# heads.
print(scores.round(3).to_string())
trained, floor = scores.loc[run.last], scores.loc[0]
assert (trained["diagonal"] > 1.5 * floor["diagonal"].max()).all()
assert trained["diagonal"].groupby("site", observed=True).mean().idxmin() == "layer@0"
assert (trained["vertical"] < floor["vertical"].min()).all()

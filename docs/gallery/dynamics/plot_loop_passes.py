"""
How many passes does a looped model need?
=========================================

A looped model applies its core repeatedly. :class:`~lmdyn.callbacks.LoopConvergence` applies the core 16 times, four
times the mean depth of the training. At each depth, the observer measures how much the state still changes, how many
predictions have settled, and the loss.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import LoopConvergence

run = shared_runs.looped()
observer = LoopConvergence(horizon=16, times=range(17), max_tokens=2000)
rows = run.observe(observer, steps=[0, run.last])
rows = rows[
    rows["position"].isna() & rows["t"].notna() & (rows["rule"].isna() | rows["rule"].isin(["", "argmax"]))
]
at = rows.pivot(index="t", columns=["step", "quantity"], values="value")

figure, panels = plt.subplots(1, 3, figsize=(8.4, 3.2), layout="constrained")
parts = {
    "residual": "relative change of the state",
    "settled_share": "share of predictions settled",
    "cross_entropy": "loss, nats",
}
for ax, (quantity, label) in zip(panels, parts.items(), strict=True):
    for step, style, name in ((0, "k:", "untrained"), (run.last, "C0o-", "trained")):
        ax.plot(at.index, at[step][quantity], style, ms=4, label=name)
    ax.set(xlabel="passes through the core", ylabel=label)
panels[0].set_yscale("log")
panels[1].set_ylim(0, 1.02)
panels[2].legend(frameon=False, fontsize=8)

# %%
# One or two passes are enough. After two passes, nearly all predictions are equal to the predictions after sixteen
# passes, and the loss no longer decreases. The state continues to approach a fixed point, faster in the trained model
# than in the untrained model. The predictions of the untrained model settle only slowly. A relative change of 1e-7 is
# the rounding of float32. The text of this script does not require long computations. To show whether more passes help,
# use a task that requires more passes.
trained, untrained = at[run.last], at[0]
print(trained.loc[[1, 2, 4, 15], ["settled_share", "cross_entropy"]].round(3).to_string())
assert trained["settled_share"][2] > 0.95 > untrained["settled_share"][2] + 0.2
assert abs(trained["cross_entropy"][2] - trained["cross_entropy"][16]) < 0.02
assert trained["residual"][6] < untrained["residual"][6] / 10

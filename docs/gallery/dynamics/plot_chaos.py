"""
Is this network chaotic?
========================

ALBERT applies one layer repeatedly. :class:`~lmdyn.callbacks.EncoderDynamics` applies the layer more often than the
network does, and measures whether two close states stay close. The measure is the Lyapunov exponent λ, the rate at
which the distance between the states grows (Inoue et al. 2022). If λ is below 0, the state ends on a fixed point or a
cycle. If λ is above 0, the orbit is chaotic.
"""

import matplotlib.pyplot as plt
import shared_runs
import torch

from lmdyn.analysis import growth_rate, local_lyapunov_exponents
from lmdyn.callbacks import EncoderDynamics, LongTerm, ShortTerm

TAU, STEPS = 10, 400
run = shared_runs.albert()
observer = EncoderDynamics(
    length=16, lengths=[16], sentences=8, examples=8, short_term=ShortTerm(steps=100),
    long_term=LongTerm(steps=STEPS, tau=TAU, check=0, max_period=16),
)  # fmt: skip
rows = run.observe(observer, steps=[0, run.last])

# %%
# A method that never finds chaos is no evidence. The script therefore computes the same exponents for a map that is
# known to be chaotic: a random network x ↦ tanh(g·Wx) of 64 units. The random network is chaotic for a gain g well
# above 1. For a gain below 1, the random network converges to 0 (Sompolinsky et al. 1988).
generator = torch.Generator().manual_seed(0)
weights = torch.randn(64, 64, generator=generator, dtype=torch.float64) / 8
start = torch.randn(8, 64, generator=generator, dtype=torch.float64)
random = {
    gain: local_lyapunov_exponents(
        lambda x, g=gain: torch.tanh(g * x @ weights), start, tau=TAU, steps=STEPS, epsilon=1e-6
    ).exponents
    for gain in (0.8, 3.0)
}

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
of_sentences = rows[
    (rows["quantity"] == "local_exponent") & rows["sentence"].isna() & (rows["term"] == "long")
]
for step, style, label in ((0, "C1s-", "ALBERT, untrained"), (run.last, "C0o-", "ALBERT, trained")):
    curve = of_sentences[of_sentences["step"] == step].sort_values("t")
    ax.plot(curve["t"], curve["value"], style, ms=3, label=label)
times = torch.arange(STEPS // TAU) * TAU
for (gain, exponents), style in zip(random.items(), ("k:", "k--"), strict=True):
    ax.plot(times, exponents.mean(1), style, label=f"random network, g = {gain}")
ax.axhline(0, color="0.7", lw=0.8, zorder=0)
ax.set(xlabel="applications of the layer", ylabel=f"λ of windows of {TAU}, nats per step")
ax.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.66))

# %%
# The trained ALBERT is not chaotic: every sentence ends on a fixed point. In the untrained ALBERT, the small weights
# make each application nearly the identity. At first, the map increases differences a little. Later, λ stays near 0,
# and 400 steps are too few to classify the orbits. The result for these orbits is ``undetermined``. The same exponent
# classifies all eight orbits of the random network correctly: chaotic at g = 3, and not chaotic at g = 0.8.
share = rows[rows["quantity"] == "orbit_share"].pivot(index="step", columns="kind", values="value")
print("share of 8 sentences by the kind of their orbit:", share.loc[:, share.gt(0).any()], sep="\n")
assert share.loc[run.last, "fixed point"] == 1 and share["chaotic"].max() == 0
assert growth_rate(random[3.0], TAU).chaotic.all() and not growth_rate(random[0.8], TAU).chaotic.any()

"""
Is SVCCA of noise zero?
=======================

SVCCA of noise is not zero. Two sets of Gaussian vectors have nothing in common. However, a canonical correlation is a
maximum over many directions, and some directions agree by chance. The value for noise is a floor, which depends on the
number of tokens per dimension.
"""

import matplotlib.pyplot as plt
import torch

from lmdyn.analysis import linear_cka, svcca

WIDTH, TOKENS = 64, [128, 256, 512, 1024, 2048, 4096, 8192]
generator = torch.Generator().manual_seed(0)


def noise(tokens):
    """Return random vectors without any structure."""
    return torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)


measures = {
    "SVCCA": svcca,
    "linear CKA, biased": lambda x, y: linear_cka(x, y, debiased=False),
    "linear CKA, debiased": lambda x, y: linear_cka(x, y, debiased=True),
}
floors = {
    name: torch.tensor([[float(measure(noise(n), noise(n))) for _ in range(5)] for n in TOKENS])
    for name, measure in measures.items()
}

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, values), marker in zip(floors.items(), "os^", strict=True):
    ax.plot(TOKENS, values.mean(1), marker=marker, label=name)
    ax.fill_between(TOKENS, values.amin(1), values.amax(1), alpha=0.2)
ax.axhline(0, color="0.7", lw=0.8)
ax.set(
    xlabel=f"tokens (vectors have {WIDTH} dimensions)", ylabel="similarity of noise to noise", xscale="log"
)
ax.set_xticks(TOKENS, TOKENS)
ax.minorticks_off()
ax.legend(frameon=False)

# %%
# The lines are means of five draws, and the bands show the range of the draws. With two tokens per dimension, SVCCA of
# noise is above one half. SVCCA of noise is below one tenth only with a hundred tokens per dimension. Debiased CKA is
# near zero for all numbers of tokens. Always compare a similarity with its floor: the untrained model of another seed,
# shuffled labels, or noise.
print(
    *(f"{n:5d} tokens: SVCCA {v:.2f}" for n, v in zip(TOKENS, floors["SVCCA"].mean(1), strict=True)), sep="\n"
)
assert floors["SVCCA"][0].min() > 0.5
assert floors["SVCCA"][-1].max() < 0.1 < floors["SVCCA"][-2].min()
assert floors["linear CKA, debiased"].mean(1).abs().max() < 0.03

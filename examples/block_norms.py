"""Your own observer in fifteen lines: it measures the mean norm of each block's output, by position in the row."""

# [readme]
from functools import partial

from lmdyn.analysis import GroupedMeans
from lmdyn.callbacks import Quantity, Sites, StreamingObserver, Watched


class BlockNorms(StreamingObserver):
    sites: Sites = "auto"

    watches = (Watched("sites", kinds=("block",)),)
    columns = {"position": int}
    recorded = (Quantity("norm", "Mean norm of a block's output.", low=0.0, panel="norms", over="position"),)

    def sums(self):
        return {"norms": partial(GroupedMeans, 1024)}  # positions

    def update(self, seen, sums):
        for name, x in self.at("sites", seen.activations).items():
            rows, positions = seen.tokens.nonzero().T
            sums["norms", name].update(positions, {"norm": x[rows, positions].norm(dim=-1)})

    def rows(self, sums):
        for (site,), means in sums.of("norms"):
            for position in means.count("norm").nonzero()[:, 0].tolist():
                yield {"site": site, "position": position}, {"norm": float(means.mean("norm")[position])}


# [end]

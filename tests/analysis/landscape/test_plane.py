import torch
from torch import nn

from lmdyn.analysis.landscape.plane import Plane, random_plane
from lmdyn.analysis.parameters.at_point import parameter_values


class Normed(nn.Module):
    """A norm layer, a bias, and a tied output."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.output = nn.Embedding(6, 4), nn.LayerNorm(4), nn.Linear(4, 6)
        self.output.weight = self.embedding.weight


def test_random_directions_have_the_norms_of_rows():
    torch.manual_seed(0)
    module = Normed()
    with torch.no_grad():
        module.embedding.weight[2] = 0
        module.embedding.weight[3] *= 100
    at = parameter_values(module)
    plane = random_plane(at, seed=1)
    # the tied one once
    assert set(plane.first) == {"embedding.weight", "norm.weight", "norm.bias", "output.bias"}
    for direction in (plane.first, plane.second):
        torch.testing.assert_close(
            direction["embedding.weight"].norm(dim=1), at["embedding.weight"].norm(dim=1)
        )
        assert all(direction[name].abs().sum() == 0 for name in ("norm.weight", "norm.bias", "output.bias"))
    assert not torch.equal(plane.first["embedding.weight"], plane.second["embedding.weight"])


def test_a_point_keeps_its_dtype():
    half = {"w": torch.ones(2, dtype=torch.bfloat16)}
    assert Plane(half, half, half).at(0.5, 0.5)["w"].dtype == torch.bfloat16

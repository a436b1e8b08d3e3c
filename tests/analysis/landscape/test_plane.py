import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from lmdyn.analysis.landscape.plane import Plane, course_of_training, random_plane
from lmdyn.analysis.parameters.at_point import parameter_values


def course(seed=0, points=7):
    generator = torch.Generator().manual_seed(seed)
    start = {
        "a": torch.randn(3, 4, generator=generator).double(),
        "b": torch.randn(5, generator=generator).double(),
    }
    found = [start]
    for _ in range(points - 1):
        found.append(
            {k: v + torch.randn(v.shape, generator=generator).double() for k, v in found[-1].items()}
        )
    return found


def flat(point):
    return torch.cat([point[name].flatten() for name in ("a", "b")]).numpy()


def test_the_course_is_its_principal_components():
    """Oracle: scikit-learn's PCA of the flat points."""
    points = course()
    found = course_of_training(points)
    matrix = np.stack([flat(p) for p in points])
    pca = PCA(2).fit(matrix)
    assert found.explained == pytest.approx(pca.explained_variance_ratio_)
    for own, theirs in zip((found.plane.first, found.plane.second), pca.components_, strict=True):
        assert abs(flat(own) @ theirs) == pytest.approx(1)
    basis = np.stack([flat(found.plane.first), flat(found.plane.second)])
    assert basis @ basis.T == pytest.approx(np.eye(2), abs=1e-12)
    differences = matrix - matrix[-1]
    assert found.coordinates == pytest.approx(differences @ basis.T)
    assert found.coordinates[-1] == pytest.approx([0, 0], abs=1e-12)
    assert (found.coordinates[0] > 0).all()
    away = np.linalg.norm(differences - differences @ basis.T @ basis, axis=1)
    assert found.distances == pytest.approx(away)


@pytest.mark.parametrize(
    "points", [course(points=2), [{"w": torch.ones(3)}] * 5, [{"w": t * torch.ones(3)} for t in range(4)]]
)
def test_what_spans_no_plane_is_refused(points):
    with pytest.raises(ValueError, match=r"at least 3 points of a training|points that span a plane"):
        course_of_training(points)


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
    assert set(plane.first) == {
        "embedding.weight",
        "norm.weight",
        "norm.bias",
        "output.bias",
    }  # the tied one once
    for direction in (plane.first, plane.second):
        torch.testing.assert_close(
            direction["embedding.weight"].norm(dim=1), at["embedding.weight"].norm(dim=1)
        )
        assert all(direction[name].abs().sum() == 0 for name in ("norm.weight", "norm.bias", "output.bias"))
    assert not torch.equal(plane.first["embedding.weight"], plane.second["embedding.weight"])


def test_a_point_keeps_its_dtype():
    half = {"w": torch.ones(2, dtype=torch.bfloat16)}
    assert Plane(half, half, half).at(0.5, 0.5)["w"].dtype == torch.bfloat16

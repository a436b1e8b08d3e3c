"""Pictures over training: planes found again, axes common to all steps, distances kept, bad input."""

import math

import pytest
import torch

from lmdyn.analysis import aligned_courses, cosine_distances, mds_picture, principal_course


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(d, seed=0):
    return torch.linalg.qr(normal(d, d, seed=seed)).Q


PLANE = normal(9, 2) * torch.tensor([3.0, 1.0])


def distances(points):
    return torch.cdist(points, points)


def test_mds_returns_the_points_of_a_plane():
    given = distances(PLANE)
    found = mds_picture(given)
    assert found.stress < 1e-6
    assert torch.allclose(distances(found.points), given, atol=1e-5)
    centred = PLANE - PLANE.mean(0)
    both = aligned_courses(torch.stack([found.points, centred]))
    assert torch.allclose(both[0], centred, atol=1e-5)
    axes = found.points.T @ found.points
    assert abs(float(axes[0, 1])) < 1e-6 * float(axes[0, 0])  # principal axes
    assert axes[0, 0] > axes[1, 1]


def test_mds_cannot_show_a_simplex_but_does_better_than_its_first_axes():
    given = 1 - torch.eye(7, dtype=torch.float64)
    found = mds_picture(given)
    assert found.stress > 0.2
    classical = principal_course(torch.eye(7, dtype=torch.float64)[None] / math.sqrt(2)).points[0]
    assert found.stress < float((distances(classical) - given).norm() / given.norm()) - 0.05
    assert torch.equal(mds_picture(given).points, found.points)  # no random numbers
    scaled = mds_picture(1e6 * given)
    assert torch.allclose(scaled.points, 1e6 * found.points, rtol=1e-6)


def test_mds_is_least_squares():
    """No other picture near it is better."""
    given = distances(normal(6, 5))
    found = mds_picture(given)
    for seed in range(20):
        other = found.points + 0.02 * normal(6, 2, seed=seed)
        assert float((distances(other) - given).norm() / given.norm()) > found.stress


def test_common_axes_are_those_of_all_steps():
    steps = torch.stack([0.1 * normal(5, 4, seed=1), normal(5, 4, seed=2), 2 * normal(5, 4, seed=3)]) + 7
    found = principal_course(steps)
    flat = (steps - steps.mean(1, keepdim=True)).flatten(0, 1)
    values = torch.linalg.eigvalsh(flat.T @ flat).flip(0)
    assert torch.allclose(found.shares, values[:2] / values.sum(), rtol=1e-10)
    points = found.points.flatten(0, 1)
    assert torch.allclose(points.T @ points, torch.diag(values[:2]), atol=1e-10)
    for i in range(3):  # by itself, each step has other axes
        alone = principal_course(steps[i : i + 1]).points[0]
        assert not torch.allclose(alone.abs(), found.points[i].abs(), atol=0.05 * float(alone.abs().max()))


def test_common_axes_do_not_depend_on_rotation_and_drift():
    steps = normal(3, 6, 5)
    found = principal_course(steps).points
    turned = principal_course(steps @ rotation(5) + torch.tensor([0.0, 50.0, -9.0])[:, None, None]).points
    assert torch.allclose(found, turned, atol=1e-9)
    assert not torch.allclose(principal_course(steps * torch.arange(1, 6)).points, found, atol=0.1)


def test_alignment_keeps_each_picture_and_moves_as_little_as_possible():
    courses = normal(4, 7, 2)
    found = aligned_courses(courses)
    for before, after in zip(courses, found, strict=True):
        assert torch.allclose(distances(before), distances(after), atol=1e-10)  # sizes too: no scaling
    centred = courses - courses.mean(1, keepdim=True)
    assert torch.allclose(found[-1], centred[-1])
    for i in range(3):
        moved = float((found[i] - found[i + 1]).norm())
        for angle in torch.linspace(0.05, 6.2, 40):
            c, s = float(angle.cos()), float(angle.sin())
            for sign in (1.0, -1.0):
                turn = torch.tensor([[c, sign * s], [-s, sign * c]], dtype=torch.float64)
                assert float((found[i] @ turn - found[i + 1]).norm()) >= moved - 1e-9
    again = aligned_courses(
        torch.stack([x @ rotation(2, i) for i, x in enumerate(courses[:-1])] + [courses[-1]])
    )
    assert torch.allclose(again, found, atol=1e-9)


def test_cosine_distances_are_those_of_deviations():
    x = normal(6, 4)
    found = cosine_distances(x + 50)
    deviations = x - x.mean(0)
    expected = 1 - torch.nn.functional.cosine_similarity(deviations[:, None], deviations[None], dim=-1)
    assert torch.allclose(found, expected, atol=1e-10)
    assert not torch.allclose(distances(x), found, atol=0.1)
    middle = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])  # the second is at the mean
    assert cosine_distances(middle).tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


def test_what_is_no_matrix_of_distances_is_refused():
    for wrong in (normal(3, 3), -distances(PLANE), distances(PLANE)[:3], torch.ones(3, 3)):
        with pytest.raises(ValueError, match="no matrix of distances"):
            mds_picture(wrong)

"""CrossCovariance: batches, parts and ranks add up; shifts cost no digits; memory does not grow."""

import json

import pytest
import torch

from lmdyn.analysis import CrossCovariance, cca, linear_cka, procrustes, pwcca, svcca
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from tests.analysis.similarity.streams import stream
from tests.helpers.ranks import run_ranks


def values(covariance):
    return torch.stack([
        covariance.cca(), covariance.svcca(), covariance.pwcca(), covariance.linear_cka(),
        covariance.linear_cka(debiased=True), covariance.procrustes(),
    ])  # fmt: skip


def direct(x, y):
    return torch.stack([
        cca(x, y), svcca(x, y), pwcca(x, y), linear_cka(x, y), linear_cka(x, y, debiased=True), procrustes(x, y),
    ])  # fmt: skip


def made(n=400, d1=30, d2=20):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d1, generator=g, dtype=torch.float64) * torch.logspace(0, -2, d1)
    return x + 5, x[:, :d2].flip(1) + torch.randn(n, d2, generator=g, dtype=torch.float64) - 50


class TestBatches:
    @pytest.mark.parametrize("sizes", [1, 3, 64, 400, [1, 399], [390, 0, 10], [0, 400]])
    def test_batches_are_the_whole(self, sizes):
        x, y = made()
        torch.testing.assert_close(values(stream(x, y, sizes)), direct(x, y), atol=1e-10, rtol=0)

    def test_mean_and_scatter(self):
        v = torch.cat(made(), 1)
        covariance = stream(*made(), 30)
        torch.testing.assert_close(covariance.mean, v.mean(0))
        torch.testing.assert_close(covariance.scatter, torch.cov(v.T) * 399)
        with pytest.raises(ValueError, match="no samples yet: call update"):
            _ = CrossCovariance().scatter

    @pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
    def test_no_digits_are_lost_at_a_mean_far_from_0(self, mean):
        """Moments about 0 would: their relative error is (mean / deviation)² · 1e-16."""
        x, y = made()
        shifted = (x * 2**-3 + mean, y - mean)
        # what the addition of the mean has itself rounded is no fault of the sums
        torch.testing.assert_close(values(stream(*shifted, 7)), direct(*shifted), atol=1e-9, rtol=0)
        raw = torch.cat(shifted, 1)
        m = raw.mean(0)
        moments = raw.T @ raw - len(raw) * torch.outer(m, m)
        assert (moments - (raw - m).T @ (raw - m)).abs().max() > 1e3 * (
            stream(*shifted, 7).pair().x.scatter - (raw - m)[:, :30].T @ (raw - m)[:, :30]
        ).abs().max()

    def test_a_first_batch_unlike_the_rest(self):
        x, y = made()
        x[:10] += 30
        torch.testing.assert_close(values(stream(x, y, 10)), direct(x, y), atol=1e-9, rtol=0)

    def test_what_is_kept_does_not_grow(self):
        covariance, (x, y), kept = CrossCovariance(), made(50), []
        for _ in range(3):
            covariance.update(x, y)
            parts = vars(covariance._sums).values()
            kept.append(sum(v.numel() for v in parts if isinstance(v, torch.Tensor)))
        assert kept[0] == kept[2] < 1.2 * 50**2


class TestParts:
    def test_parts_add_up_whatever_their_means(self):
        x, y = made()
        x[100:250] += 8
        parts = [
            stream(a, b, 20) for a, b in zip(x.split([100, 150, 150]), y.split([100, 150, 150]), strict=True)
        ]
        together = CrossCovariance.combine([*parts, CrossCovariance()])
        torch.testing.assert_close(values(together), direct(x, y), atol=1e-10, rtol=0)
        assert [p.n for p in parts] == [100, 150, 150]  # as they were
        torch.testing.assert_close(values(parts[1]), direct(x[100:250], y[100:250]), atol=1e-10, rtol=0)

    def test_weights_count_samples_several_times(self):
        x, y = made()
        parts = [stream(a, b, 20) for a, b in zip(x.split(100), y.split(100), strict=True)]
        drawn = torch.cat([torch.arange(100)] * 2 + [torch.arange(300, 400)])
        got = CrossCovariance.combine(parts, [2, 0, 0, 1])
        assert got.n == 300
        torch.testing.assert_close(values(got), direct(x[drawn], y[drawn]), atol=1e-10, rtol=0)

    def test_errors(self):
        x, y = made(50)
        part = stream(x, y, 10)
        with pytest.raises(ValueError, match="none of the parts has samples"):
            CrossCovariance.combine([part], [0])
        with pytest.raises(ValueError, match="expected 1 weights >= 0, got 1, 2"):
            CrossCovariance.combine([part], [1, 2])


def test_what_does_not_fit():
    x, y = made(50)
    covariance = CrossCovariance()
    with pytest.raises(ValueError, match="row i of both"):
        covariance.update(x, y[1:])
    covariance.update(x, y)
    with pytest.raises(ValueError, match=r"dimensions \(30, 20\), as in earlier samples"):
        covariance.update(y, x)


# what each rank has of the rows 0 … 399: the first none
SHARES = [(0, 0), (0, 130), (130, 400)]


def test_ranks_give_the_values_of_one(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", ranks=len(SHARES))
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(SHARES))]
    expected = values(stream(*made(), 50))
    for result in results:
        assert result["n"] == 400
        torch.testing.assert_close(
            torch.tensor(result["values"], dtype=torch.float64), expected, atol=1e-11, rtol=0
        )
    assert all(result == results[0] for result in results)
    assert results[0]["empty"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    x, y = made()
    on_gpu = (x.cuda(), y.cuda())
    covariance = stream(*on_gpu, 64)
    assert covariance.cca().device.type == "cuda"
    for got in (values(covariance), direct(*on_gpu)):
        torch.testing.assert_close(got.cpu(), direct(x, y), atol=1e-9, rtol=0)


def rank_main(folder):
    torch.distributed.init_process_group("gloo")
    rank, _ = rank_and_world_size()
    (start, end), (x, y) = SHARES[rank], made()
    covariance = stream(x[start:end], y[start:end], 40)
    covariance.reduce()
    empty = CrossCovariance()
    empty.reduce()
    found = {"n": covariance.n, "values": values(covariance).tolist(), "empty": empty.n}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def test_leaving_out_a_part_is_the_sum_of_the_others(related):
    x, y = related()
    parts = [stream(a, b, 30) for a, b in zip(x.split(30), y.split(30), strict=True)]
    whole = CrossCovariance.combine(parts)
    left = whole.without(parts[2])
    expected = CrossCovariance.combine(parts[:2] + parts[3:])
    assert left.n == expected.n == 170
    torch.testing.assert_close(left.scatter, expected.scatter, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(values(left), values(expected), atol=1e-11, rtol=0)
    assert float(left.cca()) != pytest.approx(float(whole.cca()), abs=1e-6)  # the control
    with pytest.raises(ValueError, match="fewer than all 200 samples, got a part of 200"):
        whole.without(whole)


class TestSeveral:
    """Representations whose pairs are all compared have one matrix of sums."""

    def parts(self):
        x, y = made()
        return [x, y, x[:, 10:14] - 3 * y[:, :4]]

    def test_each_pair_is_as_alone(self):
        parts = self.parts()
        together = CrossCovariance(["x", "y", "z"])
        for rows in zip(*(part.split([100, 0, 300]) for part in parts), strict=True):
            together.update_all(rows)
        for i, j in ((0, 1), (0, 2), (1, 2), (2, 0)):
            pair = together.between(i, j)
            torch.testing.assert_close(values(pair), direct(parts[i], parts[j]), atol=1e-10, rtol=0)
            assert pair.n == 400

    def test_one_that_is_not_finite_leaves_the_others_as_they_are(self):
        x, y, z = self.parts()
        together = CrossCovariance(["x", "y", "z"])
        together.update_all([x, y, z / 0])
        torch.testing.assert_close(values(together.between(0, 1)), direct(x, y), atol=1e-10, rtol=0)

    def test_a_pair_is_a_covariance_of_its_own(self):
        x, y, z = self.parts()
        together = CrossCovariance(["x", "y", "z"])
        together.update_all([x[:200], y[:200], z[:200]])
        before = values(together.between(0, 1))
        pair = together.between(0, 1)
        pair.update(x[200:], y[200:])
        torch.testing.assert_close(values(pair), direct(x, y), atol=1e-10, rtol=0)
        torch.testing.assert_close(values(together.between(0, 1)), before, atol=0, rtol=0)
        assert together.n == 200
        together.update_all([x[200:], y[200:], z[200:]])
        assert pair.n == 400
        whole = CrossCovariance.combine([together])
        torch.testing.assert_close(values(whole.between(0, 2)), direct(x, z), atol=1e-10, rtol=0)

"""Streaming sums of vectors: spectrum, mean cosine, kurtosis of components and of units, largest magnitude."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.geometry.spectrum import Spectrum
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.statistics.distributed import gather
from lmdyn.analysis.statistics.precision import UNDERFLOW, at_least_float32, exact_float, rounding, unit_size

__all__ = ["VectorGeometry", "VectorSums", "anisotropy", "token_kurtosis"]

_ROWS = 2048  # rows that are added at once: fewer would take longer, since each operation has a fixed cost
_NUMBERS = 1 << 21  # most numbers that are added at once, 16 MiB in float64


def anisotropy(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Compute the mean cosine of all pairs of different rows, (‖Σu‖² − n) / (n(n − 1)) with u = x/‖x‖.

    It is exact: the sum over pairs is the squared norm of the sum of unit vectors, without its n squares. Rows of 0
    are left out. 0 for directions without preference, 1 for equal ones.

    Args:
        x: (n, d) vectors.

    Returns:
        Scalar float64 from −1/(n − 1) to 1; NaN for fewer than 2 rows that are not 0, or if a value is NaN or infinite.

    Reference: Ethayarajh 2019, "How contextual are contextualized word representations?", section 4.1, where it is
        estimated from a sample of words.

    Example:
        >>> anisotropy(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
        tensor(0.3333, dtype=torch.float64)
    """
    x = unit_size(exact_float(x), 1)
    return _anisotropy(*_unit_sum(x, torch.linalg.vector_norm(x, dim=1)))


def _unit_sum(x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of unit vectors, and their number; NaN and ∞ of a row make the sum NaN."""
    there = norms != 0
    inverse = torch.where(there, 1 / norms.where(there, 1), 0)
    inverse = inverse.where(norms.isfinite(), torch.nan)
    return inverse @ x, there.sum().to(x.dtype)


def _anisotropy(total: Tensor, n: Tensor) -> Tensor:
    pairs = n * (n - 1)
    return torch.where(pairs > 0, (total.square().sum() - n) / pairs.clamp(min=1), torch.nan)


def token_kurtosis(x: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Compute the excess kurtosis of each row over its d components, m₄/m₂² − 3.

    About 0 if components are Gaussian (in d components, −6/(d + 1) on average), as in any rotated basis of many
    directions; above 0 if a few components are much larger than others: the basis is privileged. It is invariant to
    scale, sign and the order of components, and to adding one number to all of them, but not to rotations.

    Args:
        x: (n, d) vectors.

    Returns:
        (n,) float64, from −2 to d − 2 + 1/(d − 1) − … (one large component); NaN for rows of equal components up to
        rounding, and if a component is NaN or infinite.

    Reference: Elhage et al. 2023, "Privileged bases in the transformer residual stream".

    Example:
        >>> token_kurtosis(torch.tensor([[1.0, -1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0]]))
        tensor([-2.0000, -0.6667,     nan], dtype=torch.float64)
    """
    return _token_kurtosis(unit_size(exact_float(x), 1), rounding(at_least_float32(x)))


def _token_kurtosis(x: Tensor, relative: float) -> Tensor:
    mean = x.mean(1, keepdim=True)
    squares = (x - mean).square_()
    m2 = squares.mean(1)
    m4 = torch.linalg.vecdot(squares, squares) / max(x.shape[1], 1)
    varies = m2 > (relative * mean[:, 0]).square().clamp(min=UNDERFLOW)
    return torch.where(varies, m4 / m2.where(varies, 1).square() - 3, torch.nan)


@dataclass(frozen=True)
class VectorGeometry:
    """Geometry of n vectors of d dimensions.

    A number is NaN if it is not defined, as that of constant vectors, or if the vectors are not :attr:`finite`.

    Attributes:
        n: number of vectors.
        width: d.
        finite: whether all vectors are finite.
        spectrum: singular values and eigenvalues; None for fewer than 2 vectors.
        anisotropy: mean cosine of all pairs, as :func:`anisotropy`.
        token_kurtosis: mean of :func:`token_kurtosis` over the vectors that are not constant.
        unit_kurtosis: mean over units (components) of the excess kurtosis over vectors; without constant units.
        largest: largest magnitude of any component of any vector.
    """

    n: int
    width: int
    finite: bool
    spectrum: Spectrum | None
    anisotropy: float
    token_kurtosis: float
    unit_kurtosis: float
    largest: float


class VectorSums:
    """Streaming float64 sums of vectors, batch by batch and over ranks.

    Memory is O(d²), and of at most 2,048 vectors that are added together, whatever their number. Sums for moments are
    taken of x − c, with c the mean of the first vectors.

    Example:
        >>> x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
        >>> sums = VectorSums()
        >>> for rows in x.split(30):
        ...     sums.update(rows)
        >>> sums.reduce()
        >>> found = sums.result()
        >>> found.n, abs(found.anisotropy - float(anisotropy(x))) < 1e-12
        (100, True)
    """

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._rows = 0
        self._covariance = CrossCovariance()
        self._centre = torch.zeros(0, dtype=torch.float64)
        self._sums: dict[str, Tensor] = {}
        self._largest = torch.zeros((), dtype=torch.float64)
        self._dtype, self._width = torch.float64, 0

    def update(self, x: Float[Tensor, "n d"]) -> None:
        """Add n vectors; n may be 0. They are copied.

        Raises:
            ValueError: if the dimensions are not those of earlier vectors.
        """
        if not x.numel():
            return
        if self._width and x.shape[1] != self._width:
            raise ValueError(f"x has {x.shape[1]} dimensions: expected {self._width}, as in earlier vectors")
        self._width, self._dtype = x.shape[1], at_least_float32(x)  # narrower types are exact in float32
        self._waiting.append(x.detach().clone())
        self._rows += len(x)
        if self._rows >= min(_ROWS, _NUMBERS // self._width):
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        x = torch.cat(self._waiting)
        self._waiting, self._rows = [], 0
        exact = exact_float(x)
        self._covariance.update(exact, exact[:, :0])
        # squares of float64 may overflow; those of narrower types may not
        scaled = unit_size(exact, 1) if x.dtype == torch.float64 else exact
        norms = torch.linalg.vector_norm(scaled, dim=1)
        total, number = _unit_sum(scaled, norms)
        kurtosis = _token_kurtosis(scaled, rounding(self._dtype))
        varies = ~kurtosis.isnan() | ~norms.isfinite()
        self._centre = self._centre if self._sums else exact.mean(0)
        v = exact - self._centre
        squares = v.square()
        new = {
            "unit": total,
            "unit_n": number,
            "kurtosis": kurtosis.where(varies, 0).sum(),
            "kurtosis_n": varies.sum().to(exact.dtype),
            "powers": torch.stack([part.sum(0) for part in (v, squares, v * squares, squares.square())]),
        }
        self._sums = {name: self._sums.get(name, 0) + value for name, value in new.items()}
        largest = torch.maximum(x.amax(), -x.amin()).to(exact.device, torch.float64)
        self._largest = torch.maximum(self._largest.to(exact.device), largest)

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no vectors."""
        self._flush()
        own = {name: value.cpu() for name, value in self._sums.items()}
        found = gather((self._covariance.n, self._dtype, self._centre.cpu(), self._largest.cpu(), own))
        there = [of for of in found if of[0]]
        if len(found) == 1 or not there:
            return
        self._covariance.reduce()
        _, self._dtype, self._centre, _, names = there[0]
        self._width = len(self._centre)
        for n, _, centre, _, sums in there:
            sums["powers"] = _moved(sums["powers"], n, centre - self._centre)
        self._sums = {name: torch.stack([sums[name] for *_, sums in there]).sum(0) for name in names}
        self._largest = torch.stack([of[3] for of in there]).max()  # NaN if one is

    def result(self) -> VectorGeometry:
        """Return the geometry of all vectors so far; that of none has NaN, of 0 dimensions."""
        self._flush()
        n = self._covariance.n
        nan = torch.nan
        if n == 0:
            return VectorGeometry(0, self._width, True, None, nan, nan, nan, nan)
        sums = self._sums
        return VectorGeometry(
            n=n,
            width=self._width,
            finite=bool(self._largest.isfinite()),
            spectrum=Spectrum.of_sums(self._covariance, self._dtype) if n > 1 else None,
            anisotropy=float(_anisotropy(sums["unit"], sums["unit_n"])),
            token_kurtosis=float(sums["kurtosis"] / sums["kurtosis_n"]),
            unit_kurtosis=self._unit_kurtosis(n),
            largest=float(self._largest),
        )

    def _unit_kurtosis(self, n: int) -> float:
        """Return the mean over units of n Σv⁴/(Σv²)² − 3 about their means, without constant ones."""
        shift = -self._sums["powers"][0] / n
        _, s2, _, s4 = _moved(self._sums["powers"], n, shift)
        mean = self._centre - shift
        varies = (s2 > (n * (rounding(self._dtype) * mean).square()).clamp(min=UNDERFLOW)) | ~s2.isfinite()
        found = n * s4 / s2.where(varies, 1).square() - 3
        return float(found[varies].mean()) if varies.any() else torch.nan


def _moved(powers: Float[Tensor, "4 d"], n: int, d: Float[Tensor, "d"]) -> Float[Tensor, "4 d"]:
    """Return the sums of the first four powers of v + δ, by unit, from those of n vectors v."""
    s1, s2, s3, s4 = powers
    return torch.stack(
        [
            s1 + n * d,
            s2 + 2 * d * s1 + n * d**2,
            s3 + 3 * d * s2 + 3 * d**2 * s1 + n * d**3,
            s4 + 4 * d * s3 + 6 * d**2 * s2 + 4 * d**3 * s1 + n * d**4,
        ]
    )

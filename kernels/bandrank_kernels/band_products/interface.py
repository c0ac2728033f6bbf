"""The three band products: Schlatt, Froebe, Hagen: Investigating the Effects of Sparse Attention on Cross-Encoders,
ECIR 2024, arXiv 2312.17649, section 3.3.

A band is (..., length, 2 * window + 1): column j of row i belongs to the pair of rows (i, i + j - window). Where the
second of the two lies outside the sequence, `band_qk` gives 0, and the others and all gradients ignore what is there.
A window wider than the sequence, a window of 0, and sequences of length 0 are legal.

All three are differentiable, any number of times, with memory linear in the length; each has a kernel on a GPU.
"""

from torch import Tensor

from bandrank_kernels.band_products import ops
from bandrank_kernels.dispatch import Backend


def band_qk(query: Tensor, key: Tensor, window: int, *, backend: Backend = "auto") -> Tensor:
    """Scores of each row with the rows at most `window` positions away: Q K^T inside the band (the paper's boxed dot).

    query, key: (..., length, dim), of one shape, dtype and device.  Returns (..., length, 2 * window + 1), contiguous:
    band[i, j] = query[i] . key[i + j - window], and 0, which is no score, where that key lies outside the sequence.
    Raises ValueError if the two do not fit together or window < 0, BackendUnavailable.
    """
    return ops.BAND_QK(query, key, window, backend)


def band_pv(band: Tensor, value: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Weighted sums of the rows at most `window` positions away: P V of a band P (the paper's circled dot).

    band: (..., length, 2 * window + 1).  value: (..., length, dim).  Returns (..., length, dim), contiguous:
    out[i] = sum over j of band[i, j] * value[i + j - window].
    Raises ValueError if the two do not fit together or the band has an even number of columns, BackendUnavailable.
    """
    return ops.BAND_PV(band, value, backend)


def band_ptv(band: Tensor, value: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Weighted sums with the band transposed: P^T V, which the gradients of `band_pv` and `band_qk` need.

    band: (..., length, 2 * window + 1).  value: (..., length, dim).  Returns (..., length, dim), contiguous:
    out[k] = sum over i of band[i, k - i + window] * value[i], abs(k - i) <= window.
    Raises what `band_pv` raises.
    """
    return ops.BAND_PTV(band, value, backend)

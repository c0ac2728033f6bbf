"""Products of matrices inside a band (Schlatt et al. 2024, section 3.2); the maths is in README.md."""

from bandrank_kernels.band_products.operators import band_pv, band_qk

__all__ = ["band_pv", "band_qk"]

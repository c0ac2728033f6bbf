"""Runs tests with every variant of the CPU kernels that this processor has, and skips them without a compiler."""

from collections.abc import Iterator

import pytest

from bandrank_kernels.native import library
from bandrank_kernels.native.library import load, native
from bandrank_kernels.native.variants import usable_variants

REASON = load() if isinstance(load(), str) else None
needs_native = pytest.mark.skipif(REASON is not None, reason=str(REASON))
needs_bfloat16 = pytest.mark.skipif(
    REASON is not None or not native().has_bfloat16, reason="this processor has no bfloat16"
)


@pytest.fixture(params=usable_variants(), ids=lambda variant: variant.name)
def each_variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs the test once with each variant, and gives it the name of the variant."""
    library.load.cache_clear()
    monkeypatch.setattr(library, "usable_variants", lambda: (request.param,))
    assert library.native().variant == request.param.name
    yield request.param.name
    library.load.cache_clear()

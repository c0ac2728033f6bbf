"""The CPU kernels in every variant that this processor runs, and where there is no compiler a reason to skip."""

import functools
from collections.abc import Iterator

import pytest

from bandrank_kernels.native import build, library
from bandrank_kernels.native.library import Library, load
from bandrank_kernels.native.variants import Variant, usable_variants

REASON = load() if isinstance(load(), str) else None
needs_native = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@functools.cache
def built(variant: Variant) -> Library:
    """The library of a variant, compiled if need be."""
    for path in build.candidates(variant):
        if path.is_file():
            return Library(path, variant.name)
    return Library(build.build(variant, build.user_cache()), variant.name)


@pytest.fixture(params=usable_variants(), ids=lambda variant: variant.name)
def each_variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a test once with each variant, whose name it is given."""
    chosen = built(request.param)
    library.load.cache_clear()
    monkeypatch.setattr(library, "usable_variants", lambda: (request.param,))
    assert library.native().path == chosen.path
    yield chosen.variant
    library.load.cache_clear()

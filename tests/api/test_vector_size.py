"""BANDRANK_VECTOR_SIZE: vectors of which only the first numbers are kept, whatever the checkpoint says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.app import client_of
from support.models import save_bi_encoder, save_cross_encoder, tiny_bi_encoder, write_json
from support.tokenizer import TOKENIZER_FILE

from bandrank.errors import BadSetting
from bandrank.models import checkpoint
from bandrank.serving import load_models
from bandrank.settings import Settings


def folder_of(kind: str, folder: Path) -> Path:
    """A bi-encoder with vectors of 32 numbers, cut to 20, as bandrank ("ours") or sentence-transformers saves it."""
    if kind == "ours":
        checkpoint.save(tiny_bi_encoder(size=20), folder, tokenizer=TOKENIZER_FILE)
    else:
        save_bi_encoder(folder, normalize=kind == "normalised")
        write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 20})
    return folder


async def vectors(folder: Path, size: int = 0, **more: Any) -> Any:
    settings = Settings(
        model=str(folder), vector_size=size, device="cpu", dtype="float32", cache_dtype="float32", **more
    )
    async with client_of(settings) as client:
        answer = await client.post("/v1/embeddings", json={"input": ["man", "who is she"], "dimensions": size or 20})
    return np.array([each["embedding"] for each in answer.raise_for_status().json()["data"]])


@pytest.mark.parametrize("kind", ["ours", "plain", "normalised"])
async def test_vectors_have_the_size_that_was_asked_for(kind: str, tmp_path: Path) -> None:
    """It may be more than the checkpoint says."""
    folder = folder_of(kind, tmp_path)
    whole = await vectors(folder, 32)

    for size in (0, 8, 28):
        cut = whole[:, : size or 20]
        cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(await vectors(folder, size), cut, rtol=0, atol=1e-6)
    with pytest.raises(BadSetting, match=r"vector_size must be at most 32, as many numbers as .* gives, got 33"):
        load_models(Settings(model=str(folder), vector_size=33))


async def test_the_fast_scorer_of_a_cascade_is_cut(tmp_path: Path) -> None:
    """The accurate one has no vectors; alone it is refused."""
    fast, accurate = folder_of("plain", tmp_path / "fast"), save_cross_encoder(tmp_path / "accurate")

    assert (await vectors(accurate, 8, fast_model=str(fast))).shape == (2, 8)
    with pytest.raises(BadSetting, match=r"vector_size needs a bi-encoder, which .*accurate is not"):
        load_models(Settings(model=str(accurate), vector_size=8))

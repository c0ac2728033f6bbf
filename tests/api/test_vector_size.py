"""BANDRANK_VECTOR_SIZE: vectors of which only the first numbers are kept, whatever the checkpoint says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.app import client_of
from support.models import edit_json, save_bi_encoder, save_cross_encoder, tiny_bi_encoder, write_json
from support.tokenizer import TOKENIZER_FILE

from bandrank.errors import BadSetting
from bandrank.models import checkpoint
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model
from bandrank.serving import load_models
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

TEXTS = ["the man", "who is she", "she was over there; who?"]


def folder_of(kind: str, folder: Path) -> Path:
    """A bi-encoder as sentence-transformers saves it, cut to 20 numbers of 32, or as bandrank does, cut to 24."""
    if kind == "ours":
        checkpoint.save(tiny_bi_encoder(size=24), folder, tokenizer=TOKENIZER_FILE)
    else:
        save_bi_encoder(folder, normalize=kind == "normalised")
        write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 20})
    return folder


async def vectors(settings: Settings, **fields: Any) -> Any:
    """The embeddings of `TEXTS`, in float32."""
    exact = settings.model_copy(update={"device": "cpu", "dtype": "float32", "cache_dtype": "float32"})
    async with client_of(exact) as client:
        answer = await client.post("/v1/embeddings", json={"input": TEXTS} | fields)
    return np.array([each["embedding"] for each in answer.raise_for_status().json()["data"]])


@pytest.mark.parametrize("kind", ["ours", "plain", "normalised"])
@pytest.mark.parametrize("size", [8, 28, 32])
async def test_vectors_have_the_size_that_was_asked_for(size: int, kind: str, tmp_path: Path) -> None:
    """It may be more than the checkpoint says; embeddings and their cosines are those of the cut vectors."""
    folder = folder_of(kind, tmp_path)
    found = await vectors(Settings(model=str(folder), vector_size=size), dimensions=size)
    whole = await vectors(Settings(model=str(folder), vector_size=32))

    cut = whole[:, :size] / np.linalg.norm(whole[:, :size], axis=1, keepdims=True)
    np.testing.assert_allclose(found, cut, rtol=0, atol=1e-6)
    assert (await vectors(Settings(model=str(folder)))).shape == (len(TEXTS), 24 if kind == "ours" else 20)


async def test_the_fast_scorer_of_a_cascade_is_cut(tmp_path: Path) -> None:
    """The accurate one, which has no vectors, is left as it is."""
    fast, accurate = folder_of("plain", tmp_path / "fast"), save_cross_encoder(tmp_path / "accurate")
    settings = Settings(model=str(accurate), fast_model=str(fast), vector_size=8, device="cpu")

    assert (await vectors(settings)).shape == (len(TEXTS), 8)


@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_more_numbers_than_a_model_gives_are_refused(kind: str, tmp_path: Path) -> None:
    settings = Settings(model=str(folder_of(kind, tmp_path)), vector_size=33)
    with pytest.raises(BadSetting, match=r"vector_size must be at most 32, as many numbers as .* gives, got 33"):
        load_models(settings)


def test_a_model_without_such_vectors_is_refused(tmp_path: Path) -> None:
    settings = Settings(model=str(save_cross_encoder(tmp_path)), vector_size=8)
    with pytest.raises(BadSetting, match=r"vector_size needs a bi-encoder: .* is a cross_encoder"):
        load_models(settings)


def test_dot_products_of_cut_unit_vectors_are_refused(tmp_path: Path) -> None:
    """As with a checkpoint's own size; the cut vectors would be compared by the cosine."""
    folder = folder_of("normalised", tmp_path)
    edit_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"}, remove=("truncate_dim",))
    with pytest.raises(BadCheckpoint, match="the dot product of vectors that are cut behind a Normalize module"):
        load_model(str(folder), size=8)
    load_model(str(folder), size=32)

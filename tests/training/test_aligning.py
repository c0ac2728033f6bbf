"""The `align` command, which rotates a bi-encoder's vectors towards those of another model."""

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.collections import write_collection
from support.models import random_ids, tiny_bi_encoder, tiny_cross_encoder
from support.training import saved, toy_documents

from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank_training.__main__ import main
from bandrank_training.aligning import rotation_towards

Floats = npt.NDArray[np.float32]


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_rotation_is_found() -> None:
    """If the other vectors are the given ones rotated, that rotation is found, up to rounding."""
    vectors, (rotation, _) = drawn(50, 8), np.linalg.qr(drawn(8, 8, seed=1))

    np.testing.assert_allclose(rotation_towards(vectors, vectors @ rotation), rotation, atol=1e-5)


@pytest.mark.parametrize(("size", "other"), [(8, 8), (5, 8)])
def test_lengths_and_products_stay(size: int, other: int) -> None:
    """Lengths and dot products stay whatever the other vectors are, also if those have more dimensions."""
    vectors = drawn(50, size)
    now = vectors @ rotation_towards(vectors, drawn(50, other, seed=1))

    assert now.shape == (50, other)
    np.testing.assert_allclose(now @ now.T, vectors @ vectors.T, atol=1e-4)


def test_the_principal_components_are_kept() -> None:
    """The given vectors have more dimensions than the others but only rank 5, so nothing of them is lost."""
    vectors = drawn(50, 5) @ drawn(5, 8, seed=1)
    now = vectors @ rotation_towards(vectors, drawn(50, 5, seed=2))

    np.testing.assert_allclose(now @ now.T, vectors @ vectors.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [None, 20])
def test_a_model_is_aligned(size: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rotated model's cosines stay as they were, and its vectors come nearer to those of the other model."""
    one = saved(tmp_path / "one", tiny_bi_encoder(size=size))
    like = saved(tmp_path / "like", tiny_bi_encoder(seed=1))
    write_collection(tmp_path / "texts", documents=toy_documents(), queries={}, qrels={})
    out = tmp_path / "rotated"

    assert main(["align", one, like, str(tmp_path / "texts"), str(out), "--most", "300"]) == 0

    printed = float(capsys.readouterr().out.split("of a text: ")[1].split(";")[0])
    tokens = Ragged.from_token_ids([random_ids(random.Random(0), length) for length in (3, 9, 20)])
    before, other, after = (load_model(name).scorer.encode_candidates(tokens).values for name in (one, like, str(out)))
    torch.testing.assert_close(after @ after.T, before @ before.T)
    assert ((after * other).sum(1) > (before * other[:, :size]).sum(1)).all()
    assert printed > 0.5


def test_what_cannot_be_aligned_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path / "a", tiny_bi_encoder()), saved(tmp_path / "b", tiny_cross_encoder())
    write_collection(tmp_path / "texts", documents={"d": "he"}, queries={}, qrels={})
    write_collection(tmp_path / "none", documents={}, queries={}, qrels={})
    texts, none = str(tmp_path / "texts"), str(tmp_path / "none")
    for arguments, message in (
        ([one, other, texts, str(tmp_path / "c")], "expected a bi-encoder"),
        ([one, one, texts, one], "is the folder of a model that is read"),
        ([one, one, none, str(tmp_path / "c")], "has no document"),
    ):
        assert main(["align", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "c").exists()

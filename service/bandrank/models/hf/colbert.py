"""ColBERT as Stanford's library saves it, with its settings in artifact.metadata; the defaults are that library's."""

from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import load_tokenizer
from bandrank.models.hf.model import Model
from bandrank.models.scorer import Scorer
from bandrank.models.texts import punctuation_ids


def read(model: Model) -> Scorer:
    """The ColBERT of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    folder, encoder, weights = model.folder, model.encoder, model.weights
    metadata = read_object(folder / "artifact.metadata", optional=True)
    metadata = metadata.get("config", metadata)
    interaction, similarity = metadata.get("interaction", "colbert"), metadata.get("similarity", "cosine")
    if interaction != "colbert" or similarity not in ("cosine", "l2"):
        raise model.refuse(f"interaction {interaction!r} by {similarity!r} is not supported")
    skipped: tuple[int, ...] = ()
    if metadata.get("mask_punctuation", True):
        skipped = punctuation_ids(load_tokenizer(folder))
    config = ColBERTConfig(
        **model.ids(),
        mask_id=model.mask_id,
        encoder=encoder,
        query_marker=model.token_id(metadata.get("query_token_id") or "[unused0]"),
        candidate_marker=model.token_id(metadata.get("doc_token_id") or "[unused1]"),
        skipped_ids=skipped,
        dim=len(weights["linear.weight"]),
        similarity=similarity,
        attend_to_masks=metadata.get("attend_to_mask_tokens", False),
        max_query_tokens=min(metadata.get("query_maxlen") or 32, encoder.max_positions),
        max_candidate_tokens=min(metadata.get("doc_maxlen") or 220, encoder.max_positions),
    )
    return model.assemble(ColBERT, config, {"projection.weight": weights["linear.weight"]})

"""ColBERT as Stanford's library saves it, its settings in artifact.metadata; the defaults are that library's."""

import string

from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.checkpoint import assemble
from bandrank.models.hf.files import load_tokenizer, read_optional_json
from bandrank.models.hf.model import Model
from bandrank.models.scorer import Scorer


def read(model: Model) -> Scorer:
    """A ColBERT. Raises BadCheckpoint, ValueError, and KeyError for a tensor that is missing."""
    folder, family, encoder, weights = model.folder, model.family, model.encoder, model.weights
    metadata = read_optional_json(folder / "artifact.metadata")
    metadata = metadata.get("config", metadata)
    interaction, similarity = metadata.get("interaction", "colbert"), metadata.get("similarity", "cosine")
    if interaction != "colbert" or similarity not in ("cosine", "l2"):
        raise model.refuse(f"interaction {interaction!r} by {similarity!r} is not supported")
    markers = metadata.get("query_token_id", "[unused0]"), metadata.get("doc_token_id", "[unused1]")
    tokens = family.cls, family.sep, family.mask, *markers
    cls_id, sep_id, mask_id, query_marker, candidate_marker = model.ids(*tokens)
    skipped: set[int] = set()
    if metadata.get("mask_punctuation", True):
        encodings = load_tokenizer(folder).encode_batch(list(string.punctuation), add_special_tokens=False)
        skipped = {encoding.ids[0] for encoding in encodings}
    config = ColBERTConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        mask_id=mask_id,
        query_marker=query_marker,
        candidate_marker=candidate_marker,
        skipped_ids=tuple(sorted(skipped)),
        dim=len(weights["linear.weight"]),
        similarity=similarity,
        attend_to_masks=metadata.get("attend_to_mask_tokens", False),
        max_query_tokens=min(metadata.get("query_maxlen", 32), encoder.max_positions),
        max_candidate_tokens=min(metadata.get("doc_maxlen", 220), encoder.max_positions),
    )
    translated = model.encoder_weights | {"projection.weight": weights["linear.weight"]}
    return assemble(ColBERT, config, translated, source=str(folder))

"""ColBERT as sentence-transformers saves it since version 6: a transformer, dense layers, a mask of the rows that
score, and a norm; the defaults are that library's.
"""

from typing import Any

from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.files import transformer_settings
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import wordings
from bandrank.models.hf.pylate import read_projection, require_maxsim
from bandrank.models.scorer import Scorer

BEHIND = ["MultiVectorMask", "Normalize"]
ROWS = "token_embeddings"


def read(model: Model) -> Scorer:
    """The ColBERT of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    folder, most = model.folder, model.encoder.max_positions
    *layers, mask, norm = (folder / each["path"] for each in read_json(folder / "modules.json")[1:])
    for path in (*layers, norm):
        of_module = read_object(path / "config.json", optional=True)
        read = of_module.get("module_input_name", "sentence_embedding")
        written = of_module.get("module_output_name") or read
        if {read, written} != {ROWS}:
            raise model.refuse(f"{path.name}: a module on {read!r} and {written!r} is not supported, only on {ROWS!r}")
    library = read_object(folder / "config_sentence_transformers.json", optional=True)
    require_maxsim(model, library)
    settings = transformer_settings(folder)
    expansion = settings.get("query_expansion") or {}
    if expansion.get("strategy", "fixed") != "fixed":
        raise model.refuse(f"queries that are filled up by {expansion} are not supported")
    limit = most_tokens(model, most, by_side=True)
    projection, weights = read_projection(layers)
    query, candidate = wordings(library)
    config = ColBERTConfig(
        **model.ids(),
        mask_id=model.token_id(expansion["token"]) if expansion.get("token") else model.mask_id,
        encoder=model.encoder,
        query_marker=None,  # markers are words of the prompts
        candidate_marker=None,
        query_wording=query,
        candidate_wording=candidate,
        skipped_ids=_skipped(model, read_object(mask / "config.json")),
        **projection,
        augment=bool(expansion),
        attend_to_masks=expansion.get("attend", False),
        max_query_tokens=min(expansion.get("length") or settings.get("query_length") or limit, most),
        max_candidate_tokens=min(settings.get("document_length") or limit, most),
    )
    return model.assemble(ColBERT, config, weights)


def _skipped(model: Model, mask: dict[str, Any]) -> tuple[int, ...]:
    """The ids of candidates' tokens that do not score. Raises BadCheckpoint for a mask of another kind."""
    tasks = mask.get("skiplist_tasks")
    if mask.get("keep_only_token_ids") or tasks not in (None, ["document"]):
        raise model.refuse(f"a mask of {mask} is not supported")
    return model.ids_of_words(mask.get("skiplist_words") or ())

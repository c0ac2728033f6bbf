"""Cross-encoders with one label, and the attention pattern of sparse ones (Schlatt et al. 2024)."""

from typing import Any

from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.checkpoint import assemble
from bandrank.models.hf.model import Model
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern


def read(model: Model) -> Scorer:
    """A cross-encoder. Raises BadCheckpoint, ValueError, and KeyError for a tensor that is missing."""
    weights, encoder, family = model.weights, model.encoder, model.family
    classifier = weights.get(f"{family.classifier}.weight")
    if (outputs := "no" if classifier is None else len(classifier)) != 1:
        raise model.refuse(f"a re-ranker has a classifier of one output, this model has {outputs}")
    cls_id, sep_id = model.ids(family.cls, family.sep)
    config = CrossEncoderConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        pattern=_pattern(model.settings),
        max_tokens=encoder.max_positions,
        max_query_tokens=min(256, encoder.max_positions // 2),
        token_types=model.settings.get("token_type_embedding", True),
    )
    translated = model.encoder_weights
    for part in ("weight", "bias"):
        translated[f"head.pooler.{part}"] = weights[f"{family.pooler}.{part}"].float()
        translated[f"head.classifier.{part}"] = weights[f"{family.classifier}.{part}"].float()
    return assemble(CrossEncoder, config, translated, source=str(model.folder))


def _pattern(settings: dict[str, Any]) -> AttentionPattern:
    """The attention pattern that a sparse cross-encoder's settings carry; full attention where they carry none.

    The weights of a sparse cross-encoder look like plain BERT: run with full attention they give other scores without
    an error. Raises ValueError if the settings carry half a pattern.
    """
    names = {"cls": "cls", "query": "query", "doc": "candidate"}
    switches = {
        f"{source}_to_{target}": settings[f"{theirs}_{others}_attention"]
        for theirs, source in names.items()
        for others, target in names.items()
        if f"{theirs}_{others}_attention" in settings
    }
    claims_sparse = "attention_window_size" in settings or "Listformer" in "".join(settings.get("architectures") or [])
    if not claims_sparse and not switches:
        return AttentionPattern()
    if "attention_window_size" not in settings or len(switches) != 6:
        raise ValueError(
            f"a sparse cross-encoder whose config.json names only {sorted(switches)} of its six attention switches and "
            f"window {settings.get('attention_window_size', 'missing')!r}; it must not be run as full attention"
        )
    return AttentionPattern(window=settings["attention_window_size"], **switches)

"""Cross-encoders with one label, and the attention patterns of sparse ones (Schlatt et al. 2024)."""

from typing import Any

from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import require_no_prompt
from bandrank.models.plain import parse
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern


def read(model: Model) -> Scorer:
    """The cross-encoder of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    encoder, frame, head = model.encoder, model.frame, model.head_weights
    pattern = _pattern(model.settings)
    require_no_prompt(model)
    # A sparse cross-encoder reads more than the tokenizer of the model that it was made of.
    max_tokens = most_tokens(model, encoder.max_positions, by_tokenizer=pattern == AttentionPattern())
    config = CrossEncoderConfig(
        **model.ids(),
        encoder=encoder,
        pattern=pattern,
        max_tokens=max_tokens,
        max_query_tokens=min(256, max_tokens // 2),
        query_separators=model.query_separators,
        token_types=model.settings.get("token_type_embedding", frame is None or frame.token_types),
    )
    return model.assemble(CrossEncoder, config, head)


def _pattern(settings: dict[str, Any]) -> AttentionPattern:
    """The attention pattern in a sparse cross-encoder's settings; full attention if there is none.

    The weights of a sparse cross-encoder have BERT's names and shapes: run with full attention, they would give wrong
    scores without an error. Raises ValueError if a part of the pattern is missing, TypeError for a wrong type.
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
    return parse(AttentionPattern, {"window": settings["attention_window_size"], **switches})

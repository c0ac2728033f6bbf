"""What families read of config.json alike, and check there."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bandrank.models.hf.model import SUPPORTED

REQUIRED = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"
COUNTS = {
    *(*REQUIRED, "num_key_value_heads", "head_dim", "embedding_size", "hidden_size_per_layer_input"),
    *("dim", "n_layers", "n_heads", "hidden_dim"),  # DistilBERT
    *("n_embd", "n_layer", "n_head", "n_inner", "n_positions"),  # NomicBERT
    *("d_model", "num_layers", "num_heads", "d_kv", "d_ff"),  # T5
}
MAYBE_0 = {"local_attention", "num_decoder_layers", "sliding_window", "type_vocab_size"}
EPSILONS = {"layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps"}
NESTED = {"full_attention", "rope_parameters", "rope_scaling", "sliding_attention", "text_config"}
AS_PUBLISHED = "take the file as the model's authors published it"


def require_sizes(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for numbers that no model has. A null, but for an epsilon, is left to the family."""
    for name, value in settings.items():
        if name in NESTED and isinstance(value, dict):
            require_sizes(value)
        # UltraBERT has a list of bases.
        fraction = name in EPSILONS or (name == "rope_theta" and not isinstance(value, list))
        if not (fraction or name in COUNTS | MAYBE_0) or (value is None and name not in EPSILONS):
            continue
        right = isinstance(value, int | float if fraction else int) and not isinstance(value, bool)
        if not right or value < 0 or (value == 0 and name not in MAYBE_0):
            expected = f"a {'' if fraction else 'whole '}number{'' if name in MAYBE_0 else ' above 0'}"
            raise ValueError(f"config.json: {name} must be {expected}, got {value!r}; {AS_PUBLISHED}")


def require_numbers(settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises ValueError for settings that are missing or not integers."""
    if missing := [name for name in names if not isinstance(settings.get(name), int)]:
        raise ValueError(f"config.json has no number for {', '.join(missing)}")


def sizes_of(settings: Mapping[str, Any], words: Tensor) -> dict[str, Any]:
    """The sizes of an encoder, as fields of its config. Raises ValueError for missing settings.

    words: the table of word vectors, which added tokens grow beyond `vocab_size`.
    """
    require_numbers(settings, REQUIRED)
    return {
        "vocab_size": len(words),
        "hidden_size": settings["hidden_size"],
        "num_layers": settings["num_hidden_layers"],
        "num_heads": settings["num_attention_heads"],
        "intermediate_size": settings["intermediate_size"],
        "max_positions": settings["max_position_embeddings"],
    }


def require_plain(settings: Mapping[str, Any], plain: Mapping[str, Any], family: str) -> None:
    """Raises ValueError for settings with other values than the plain ones, the only ones that are computed here."""
    if other := {name: settings[name] for name, value in plain.items() if settings.get(name, value) != value}:
        raise ValueError(f"a {family} with {other} is not supported; {SUPPORTED}")

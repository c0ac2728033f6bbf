"""Tiny random XLM-RoBERTas with rotary positions in Jina AI's folders, and what `transformers` makes of their texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.bert_likes import save
from support.models import edit_json
from torch import Tensor
from transformers import PreTrainedModel

NAME = "jinaai/jina-embeddings-v3"
QUERY, TEXTS = "who is the man", ["the man", "", "she was over there; who?", "ñandú ☂ of the man " * 9]
CODE = "configuration_xlm_roberta.XLMRobertaFlashConfig"
SETTINGS = {  # of the authors' code
    "auto_map": {"AutoConfig": f"jinaai/xlm-roberta-flash-implementation--{CODE}"},
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "lora_adaptations": None,
    "use_flash_attn": True,
}


def padded_states(states: Callable[[Tensor, Tensor], Tensor], texts: list[list[int]], unseen: int) -> list[Tensor]:
    """The states of each text's tokens, padded together.

    states: those of ids and of whether a token is seen, (n, len) each.  unseen: how many of the last tokens are masked.
    """
    longest = max(map(len, texts))
    ids = torch.tensor([text + [1] * (longest - len(text)) for text in texts])
    seen = torch.arange(longest) < torch.tensor([[len(text) - unseen] for text in texts])
    return [each[: len(text)] for each, text in zip(states(ids, seen), texts, strict=True)]


def states(model: PreTrainedModel, texts: list[list[int]], unseen: int = 0) -> list[Tensor]:
    """The library's states of texts, as of `padded_states`."""
    return padded_states(lambda ids, seen: model(ids, attention_mask=seen.long()).last_hidden_state, texts, unseen)


def as_jina_saves_it(folder: Path, model: PreTrainedModel | None = None, **more: Any) -> Path:
    """A folder of theirs, with the library's tensors. more: of its settings."""
    save(folder, NAME, model)
    edit_json(folder / "config.json", SETTINGS | more, remove=("model_type", "rope_parameters"))
    return folder

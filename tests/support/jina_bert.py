"""JinaBERT by its formulas, on padded batches and full matrices, because `transformers` has no such model. The tensors
have the names that its authors gave them.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import gelu, relu
from transformers import BertConfig

modules: Any = nn.ModuleDict
NO_MASK = torch.zeros(())


class JinaBert(nn.Module):
    """A re-ranker. config.code: whether it is the variant for code, which normalises queries and keys."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config: Any = config
        size, inner, code = config.hidden_size, config.intermediate_size, self.config.code

        def norms(*names: str) -> dict[str, nn.Module]:
            return {name: nn.LayerNorm(size, eps=config.layer_norm_eps) for name in names}

        def dense(*names: str) -> dict[str, nn.Module]:
            return {name: nn.Linear(size, size) for name in names}

        def layer() -> nn.Module:
            own = modules(dense("query", "key", "value") | norms(*("layer_norm_q", "layer_norm_k") * code))
            up, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
            mlp = {up: nn.Linear(size, 2 * inner, bias=False), down: nn.Linear(inner, size)}
            attention = modules({"self": own, "output": modules(dense("dense") | norms("LayerNorm"))})
            mlp |= norms(*("layernorm",) * (not code))
            return modules(
                {"attention": attention, "mlp": modules(mlp)} | norms(*("layer_norm_1", "layer_norm_2") * code)
            )

        tables = {"word": config.vocab_size, "token_type": config.type_vocab_size}
        embeddings = {f"{name}_embeddings": nn.Embedding(count, size) for name, count in tables.items()}
        layers = nn.ModuleList(layer() for _ in range(config.num_hidden_layers))
        self.bert = modules(
            {
                "embeddings": modules(embeddings | norms("LayerNorm")),
                "encoder": modules({"layer": layers}),
                "pooler": modules(dense("dense")),
            }
        )
        self.classifier = nn.Linear(size, 1)

    def states(self, ids: Tensor, types: Tensor, mask: Tensor = NO_MASK) -> Tensor:
        """The states of the last layer, (n, len, hidden_size).

        ids, types: (n, len).  mask: added to the attention scores, (n, heads, len, len).
        """
        heads, act = self.config.num_attention_heads, {"geglu": gelu, "reglu": relu}[self.config.feed_forward_type]
        place = torch.arange(ids.shape[1])
        away = (place[:, None] - place[None, :]).abs()
        bias = torch.stack([-away / 256 ** ((1 + head) / heads) for head in range(heads)])  # `heads`: a power of two
        tables: Any = self.bert["embeddings"]
        hidden = tables["LayerNorm"](tables["word_embeddings"](ids) + tables["token_type_embeddings"](types))
        layers: Any = self.bert["encoder"]
        for layer in layers["layer"]:
            own, out, mlp = layer["attention"]["self"], layer["attention"]["output"], layer["mlp"]
            query, key, value = (own[name](hidden) for name in ("query", "key", "value"))
            if self.config.code:
                query, key = own["layer_norm_q"](query), own["layer_norm_k"](key)
            query, key, value = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value))
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]) + bias + mask
            after = out["LayerNorm"](hidden + out["dense"]((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)))
            if self.config.code:
                after = layer["layer_norm_1"](hidden + after)
                gated, gate = mlp["up_gated_layer"](after).chunk(2, -1)
                hidden = layer["layer_norm_2"](after + mlp["down_layer"](gated * act(gate)))
            else:
                gate, gated = mlp["gated_layers"](after).chunk(2, -1)
                hidden = mlp["layernorm"](after + mlp["wo"](act(gate) * gated))
        return hidden  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor = NO_MASK) -> SimpleNamespace:
        """The logits of sequences of query and candidate, (n, 1)."""
        pooler: Any = self.bert["pooler"]
        first = self.states(input_ids, token_type_ids, attention_mask)[:, 0]
        return SimpleNamespace(logits=self.classifier(torch.tanh(pooler["dense"](first))))

    def save_pretrained(self, folder: Path) -> None:
        self.config.save_pretrained(folder)
        save_file(self.state_dict(), folder / "model.safetensors")

"""Scores that were recorded once, on inputs that every later revision can make again.

`tests/data/recorded_scores.json` was written before the engine and the encoder were rebuilt; the rankings of the
shipped scorers were written again when their weights changed. Weights of the other scorers are drawn by the names of
the tensors, so that they do not depend on the order in which modules are made.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FILE = Path(__file__).resolve().parents[1] / "data" / "recorded_scores.json"
DEMO = FILE.parent / "demo"
QUERIES = ("how do bees find their way home?", "why is the sky blue")
DEPTH = 20  # of the cascade


def recorded() -> dict[str, Any]:
    """The content of `FILE`."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def draw_by_name(module: nn.Module) -> None:
    """Gives every tensor of `module` random values that depend on its name and shape alone."""
    for name, tensor in module.state_dict().items():
        tensor.copy_(_drawn(name, tensor))


def _drawn(name: str, tensor: Tensor) -> Tensor:
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if "norm" in name:
        return 0.1 * noise + float(name.endswith("weight"))
    if name.endswith("bias"):
        return 0.1 * noise
    is_matrix = tensor.dim() == 2 and "embeddings" not in name and "codes" not in name
    return noise * (1.5 * tensor.shape[1] ** -0.5 if is_matrix else 1.0)


def demo_texts() -> list[str]:
    """The sixty passages of the demo."""
    lines = (DEMO / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["text"] for record in map(json.loads, lines)]

"""infinity over HTTP, where it is installed and can load a checkpoint."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import torch

from bandrank_bench import infinity
from bandrank_bench.ours import REQUEST_TIMEOUT_S
from bandrank_bench.systems import Score, System, torch_precision

DTYPES: Mapping[infinity.Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def open_infinity(stack: ExitStack, checkpoint: Path, environment: Path) -> tuple[list[System], dict[str, str]]:
    """Services in every precision, which `stack` closes; and the reason for each that cannot be had."""
    systems: list[System] = []
    left_out: dict[str, str] = {}
    for dtype, torch_dtype in DTYPES.items():
        precision = torch_precision(torch_dtype)
        name = f"infinity {precision}, HTTP"
        how = infinity.Configuration(dtype=dtype)
        log = checkpoint.with_name(f"infinity-{dtype}.log")
        try:
            program = infinity.find(environment)
            opened = stack.enter_context(ExitStack())
            service = opened.enter_context(infinity.running_infinity(program, checkpoint, how, log))
            client = opened.enter_context(
                httpx.Client(base_url=service.url, timeout=REQUEST_TIMEOUT_S, trust_env=False)
            )
            infinity.score(client, "a query", ["a passage"])
        except (FileNotFoundError, RuntimeError) as error:
            left_out[name] = _last_line(str(error))
        except httpx.HTTPStatusError as error:
            left_out[name] = f"it answers {error.response.status_code}: {_last_line(error.response.text)}"
            opened.close()
        else:
            systems.append(System(name, precision, "full", "peer", _scoring(client)))
    return systems, left_out


def _scoring(client: httpx.Client) -> Score:
    return lambda query, passages: infinity.score(client, query, passages)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip()

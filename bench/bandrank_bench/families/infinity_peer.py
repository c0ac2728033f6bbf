"""infinity over HTTP, if it is installed and can load the checkpoint."""

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
    """Starts services in every precision, which `stack` closes; or returns the reasons why there are none."""
    systems = []
    try:
        program = infinity.find(environment)
        with ExitStack() as opened:
            for dtype, torch_dtype in DTYPES.items():
                precision = torch_precision(torch_dtype)
                how, log = infinity.Configuration(dtype=dtype), checkpoint.with_name(f"infinity-{dtype}.log")
                service = opened.enter_context(infinity.running_infinity(program, checkpoint, how, log))
                asked = httpx.Client(base_url=service.url, timeout=REQUEST_TIMEOUT_S, trust_env=False)
                score = _scoring(opened.enter_context(asked))
                score("a query", ["a passage"])
                systems.append(System(f"infinity {precision}, HTTP", precision, "full", "peer", score))
            stack.enter_context(opened.pop_all())
    except httpx.HTTPStatusError as error:
        return [], {"infinity": f"it answers {error.response.status_code}: {_last_line(error.response.text)}"}
    except (FileNotFoundError, RuntimeError) as error:
        return [], {"infinity": _last_line(str(error))}
    return systems, {}


def _scoring(client: httpx.Client) -> Score:
    return lambda query, passages: infinity.score(client, query, passages)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip()

"""Ten thousand requests drawn from the service's own description of its API, and the answers compared with it.

Run with `make fuzz`. BANDRANK_FUZZ_SEED: the seed (default 1). BANDRANK_FUZZ_EXAMPLES: requests drawn for each
operation, and chains of requests (default 350).
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.models import save_bi_encoder
from support.server import running_service
from support.soak_pool import tiny_cross_encoder

pytestmark = pytest.mark.fuzz

HERE = Path(__file__).parent
SEED = os.environ.get("BANDRANK_FUZZ_SEED") or "1"
EXAMPLES = os.environ.get("BANDRANK_FUZZ_EXAMPLES") or "350"
KEY = "fuzz-" + "k" * 40
LEAST_CASES, TIMEOUT_S = 10_000, 1200.0


def test_the_service_does_what_its_description_says(tmp_path: Path) -> None:
    """The service answers what its description allows, refuses everything else, and sends no status, header or body
    that the description lacks. It has a key, which it asks for, and a scorer that precomputes, for the strategies and
    /candidates.
    """
    model, fast = tiny_cross_encoder(tmp_path / "model"), save_bi_encoder(tmp_path / "fast")
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(KEY.encode("ascii")).hexdigest()
    keys.write_text(f'[fuzz]\nsha256 = "{digest}"\nscopes = ["rank", "register", "admin"]\n', encoding="utf-8")
    arguments = ["--model", str(model), "--fast-model", str(fast), "--keys", str(keys)]
    with running_service(tmp_path, arguments=arguments) as service:
        report = tmp_path / "report.json"
        options = ["--seed", SEED, "--max-examples", EXAMPLES, "--report", "json", "--report-json-path", str(report)]
        options += ["--header", f"Authorization: Bearer {KEY}"]
        found = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
                *("run", f"{service.url}/openapi.json", *options),
            ],
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": str(HERE / "lines.py")},
            timeout=TIMEOUT_S,
            check=False,
        )
        assert service.process.poll() is None
    told = json.loads(report.read_text(encoding="utf-8"))

    assert (found.returncode, told["failures"], told["errors"]) == (0, [], [])
    assert {name: phase["status"] for name, phase in told["phases"].items()} == dict.fromkeys(
        ("examples", "coverage", "fuzzing", "stateful"), "success"
    )
    assert told["test_cases"]["generated"] >= LEAST_CASES
    assert "Traceback" not in service.log.read_text(encoding="utf-8")

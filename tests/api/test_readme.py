"""The models that ship give the answers that README.md and docs/clients.md show to their requests."""

import json
import re
from pathlib import Path

import pytest
from support.app import client_of

from bandrank.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
README, CLIENTS = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/clients.md"))
ASKED = r"curl -s localhost:8000/rerank -H 'content-type: application/json' -d '(\{.*?\})'\n"
OWN, TEI = (json.loads(re.findall(ASKED, page, re.DOTALL)[0]) for page in (README, CLIENTS))
TOLERANCE = 0.01  # of a score between 0 and 1: they are shown with two digits


async def test_the_scores_are_those_of_the_shipped_models() -> None:
    async with client_of(Settings(device="cpu", dtype="float32")) as client:
        own, tei = [(await client.post("/rerank", json=body)).json() for body in (OWN, TEI)]

    shown = re.findall(r'\{"index": (\d), "relevance_score": ([\d.]+), "stage": "(\w+)"', README)[:2]
    assert [each[::2] for each in shown] == [(str(each["index"]), each["stage"]) for each in own["results"]]
    scores = [each["relevance_score"] for each in own["results"]]
    assert [float(score) for _, score, _ in shown] == pytest.approx(scores, abs=TOLERANCE)
    lines = re.findall(r'\{"index":(\d),"score":([\d.]+)\}', CLIENTS)
    assert [int(index) for index, _ in lines] == [each["index"] for each in tei]
    assert [float(score) for _, score in lines] == pytest.approx([each["score"] for each in tei], abs=TOLERANCE)

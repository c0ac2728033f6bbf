"""What is measured offline is what the service answers."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.app import running_app
from support.collections import write_collection
from support.models import random_text, save_bi_encoder, save_cross_encoder, save_sparse_cross_encoder

from bandrank.models.loading import load_model
from bandrank.settings import Settings
from bandrank_training.__main__ import main
from bandrank_training.collection import read_run

TOLERANCE = 1e-5  # in float32, between a candidate's score alone and in company, for any scorer


@pytest.mark.parametrize("save", [save_cross_encoder, save_sparse_cross_encoder, save_bi_encoder])
async def test_offline_and_served_rankings_are_the_same(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    """Ids, order and raw scores are equal for the same checkpoint and pools, and long texts are cut alike."""
    rng = random.Random(2)
    documents = {f"d{number}": random_text(rng, length) for number, length in enumerate([0, 300, *range(2, 60, 2)])}
    queries = {"short": random_text(rng, 4), "long": random_text(rng, 250)}
    qrels = {query_id: dict.fromkeys(["d0", "d1", *rng.sample(list(documents)[2:], 15)], 1) for query_id in queries}
    collection = write_collection(tmp_path / "tiny", documents=documents, queries=queries, qrels=qrels)
    model = save(tmp_path / "scorer")

    arguments = ["evaluate", model, collection, "--pool", "--device", "cpu", "--out", tmp_path]
    assert await asyncio.to_thread(main, [str(argument) for argument in arguments]) == 0
    offline = read_run(tmp_path / "tiny.test.pool.scorer.trec")

    # By default representations are cached in float16, which moves scores in the fourth digit.
    settings = Settings(device="cpu", dtype="float32", cache_dtype="float32")
    async with running_app(load_model(str(model)).scorer, settings=settings) as running:
        for query_id, query in queries.items():
            pool = [{"id": document_id, "text": documents[document_id]} for document_id in sorted(qrels[query_id])]
            response = await running.rerank({"query": query, "candidates": pool, "raw_scores": True})
            assert response.status_code == 200, response.text
            results = response.json()["results"]
            served = {result["id"]: result["relevance_score"] for result in results}
            assert list(served) == list(offline[query_id])
            assert served == pytest.approx(offline[query_id], abs=TOLERANCE)

"""What is kept of an encoding that is given up midway: each text's own representation, or none."""

import asyncio
import time

import pytest
import torch
from support.scorers import encoded_lookup, word_id
from support.serving import ranked, served
from support.tasks import HANG_S

from bandrank.errors import ScoringFailed
from bandrank.models.ragged import Ragged

pytestmark = pytest.mark.anyio

SCORES = {"man": 1.0, "she": 2.0, "you": 3.0, "he": 4.0}


async def test_texts_after_one_that_cannot_be_encoded_get_no_others_representations() -> None:
    """The event loop hears of the failure when the scoring thread is through with all that it does for the request."""
    loop, well = asyncio.get_running_loop(), False

    def hold_the_loop() -> None:
        until = time.monotonic() + HANG_S
        while model.engine.worker.stuck_s > 0 and time.monotonic() < until:
            time.sleep(0.001)

    def choke(tokens: Ragged) -> None:
        first = [int(tokens[index][0]) for index in range(len(tokens))]
        if not well and (len(first) == 4 or word_id("she") in first):
            if len(first) == 1:
                loop.call_soon_threadsafe(hold_the_loop)
            raise torch.OutOfMemoryError("too large")

    async with served(encoded_lookup(choke, **SCORES)) as model:
        with pytest.raises(ScoringFailed):
            await model.rank("who", [*SCORES])
        well = True

        assert ranked(await model.rank("who", [*SCORES])) == [(3, 4.0), (2, 3.0), (1, 2.0), (0, 1.0)]
        assert (
            model.engine.metrics.registry.get_sample_value("bandrank_cache_candidates_total", {"outcome": "hit"}) == 1
        )

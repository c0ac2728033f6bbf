"""Rerank load over HTTP, at a constant rate of arrivals per user, with every answer checked.

Environment: RERANK_RATE (requests a second of each user), RERANK_CANDIDATES (counts to draw from), RERANK_DOCUMENTS
(size of the pool of texts), RERANK_ZIPF (exponent of their popularity), RERANK_SEED, RERANK_KEY (of a service that asks
for one).
"""

import itertools
import os
import random

from locust import FastHttpUser, constant_throughput, task
from workload import Workload, WrongAnswerError, candidates_of, check_answer

SEED = int(os.environ.get("RERANK_SEED", "1"))
WORKLOAD = Workload(
    seed=SEED,
    num_documents=int(os.environ.get("RERANK_DOCUMENTS", "5000")),
    candidate_counts=[int(count) for count in os.environ.get("RERANK_CANDIDATES", "10,20,50,100").split(",")],
    exponent=float(os.environ.get("RERANK_ZIPF", "1.0")),
)
HEADERS = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("RERANK_KEY")) else {}
USER_NUMBERS = itertools.count()


class SearchPage(FastHttpUser):
    """Asks for a ranking at a steady pace, whether or not the service keeps up."""

    wait_time = constant_throughput(float(os.environ.get("RERANK_RATE", "0.5")))

    def on_start(self) -> None:
        """Seeds this user's requests, which differ from those of other users, in other processes too."""
        self.rng = random.Random(f"{SEED}-{self.environment.runner.worker_index}-{next(USER_NUMBERS)}")

    @task
    def rerank(self) -> None:
        """Sends one request; locust lists its statistics under its number of candidates."""
        body = WORKLOAD.request(self.rng)
        name = f"/rerank {len(candidates_of(body)):>4} candidates"
        with self.client.post("/rerank", json=body, headers=HEADERS, name=name, catch_response=True) as response:
            if response.status_code == 429:
                response.failure(f"429, retry after {response.headers.get('Retry-After')} s")
            elif response.status_code != 200:
                response.failure(f"status {response.status_code}: {(response.text or str(response.error))[:200]}")
            else:
                try:
                    check_answer(body, response.json())
                except (WrongAnswerError, ValueError) as error:
                    response.failure(f"wrong answer: {error}")

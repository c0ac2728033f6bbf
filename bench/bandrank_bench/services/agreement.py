"""Checks that a service gives the checkpoint's scores, before its speed counts."""

from collections.abc import Mapping, Sequence

import httpx

from bandrank_bench.cpu.agreement import Agreement, check
from bandrank_bench.service import Service
from bandrank_bench.services.contenders import Contender
from bandrank_bench.systems import Pattern, Scores, System, scores_in_order
from bandrank_bench.workloads import Request

TIMEOUT_S = 120.0


def agreement_of(
    contender: Contender, service: Service, request: Request, references: Mapping[Pattern, Scores]
) -> Agreement | None:
    """Compares a service's scores with the reference for its pattern; None if its weights are unknown.

    Raises Disagreement if the difference is too large.
    """

    def score(query: str, passages: Sequence[str]) -> Scores:
        body = {"query": query, contender.texts_field: list(passages), **contender.fields}
        answer = httpx.post(f"{service.url}/rerank", json=body, timeout=TIMEOUT_S, trust_env=False).raise_for_status()
        results = answer.json()
        if isinstance(results, list):
            return scores_in_order(results, len(passages), "score")
        return scores_in_order(results["results"], len(passages))

    if contender.precision is None:
        score(request.query, request.passages)
        return None
    system = System(contender.name, contender.precision, contender.pattern, "HTTP", score)
    return check([system], request, dict(references))[0]

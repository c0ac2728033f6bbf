"""The experiments on the real service, with a tiny model: asked in its own format and in that of TEI."""

import asyncio
from pathlib import Path

import pytest
from support.models import save_sparse_cross_encoder

from bandrank_bench.calibrate import Calibration
from bandrank_bench.service import running_service
from bandrank_bench.services.agreement import agreement_of
from bandrank_bench.services.contenders import PATIENT, Contender, ours, tei
from bandrank_bench.services.experiments import Laboratory, Plan
from bandrank_bench.services.memory import Memory
from bandrank_bench.workloads import Request

PLAN = Plan((1, 16), (0.5,), (0.6,), closed_s=0.5, open_s=0.5, warm_up_s=0.1, deadline_s=10.0, candidates=3, rounds=1)


@pytest.mark.slow
def test_every_client_is_answered(tmp_path: Path) -> None:
    """More clients ask at once than the service lets wait by default, and none is refused."""
    model = save_sparse_cross_encoder(tmp_path / "model")
    settings = {"MODEL": str(model), "DEVICE": "cpu", **PATIENT}
    with running_service(settings, tmp_path / "service.log") as service, asyncio.Runner() as runner:
        laboratory = Laboratory(PLAN, Calibration(lambda: None, settle_s=0.0), runner)
        found: list[Contender] = [ours(model, "sparse", "float32"), tei(service.url)]
        for contender in found:
            closed, many, opened, steady = laboratory.round(contender, service, 0)
            for run in (closed, many, opened, steady):
                assert {one.kind for one in run.outcomes} == {"answered"}
            assert len(many.outcomes) >= 16
            assert len(opened.queue_s) == len(opened.outcomes)
            assert [run.steady for run in (opened, steady)] == [False, True]
        assert agreement_of(found[1], service, Request("a query", ["a passage", "another"], [5, 4]), {}) is None
        assert service.pid is not None
        assert Memory.of(service.pid).peak > 0

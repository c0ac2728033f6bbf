"""A scoring thread that dies or hangs under load: every request is answered or refused, and the process ends."""

from pathlib import Path

import pytest
from support.gated_service import DIE
from support.gates import gated_service
from support.load import load
from support.soak_pool import Pool
from support.tasks import wait_until

POOL = Pool(["who"], ["man", "she"], [[1.5, -2.0]])  # the scores that the gated service gives
CLIENTS = 8
FAILED = (500, 504)  # the answers to requests that can no longer be scored: an error, or a time-out


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_scoring_thread_that_fails_loses_no_request(how: str, tmp_path: Path) -> None:
    """Each request that was read gets the right scores or an error, and the exit status is 1."""
    hangs = ["--hang-timeout-s", "1"] if how == "hangs" else []
    with (
        gated_service(tmp_path, *hangs) as gated,
        load(gated.service.url, POOL, clients=CLIENTS, allowed=FAILED) as account,
    ):
        gated.let_through(batches=30)
        wait_until(lambda: account.right > CLIENTS)
        if how == "dies":
            gated.let_through(DIE)
        assert gated.service.exit_status() == 1

    assert account.lost == []
    assert account.others >= 1
    assert "Traceback" not in gated.service.log.read_text() or how == "dies"

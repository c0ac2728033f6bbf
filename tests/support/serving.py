"""Models served in this process, without HTTP."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from support.scorers import loaded

from bandrank.engine.ranking import Ranking
from bandrank.engine.served import ServedModel
from bandrank.models.fusion import Fusion
from bandrank.models.scorer import Scorer
from bandrank.serving import LoadedScorers, assemble
from bandrank.settings import Settings


def files_of(
    scorer: Scorer, *, fast: Scorer | None = None, name: str = "tiny", depth: int = 50, fusion: Fusion | None = None
) -> LoadedScorers:
    """The files of a served model with these scorers. fusion: how `fast`'s scores are added to `scorer`'s."""
    main = replace(loaded(scorer, name=name), fusion=fusion)
    return LoadedScorers(name, main, None if fast is None else loaded(fast, name=f"{name}-fast"), depth)


@asynccontextmanager
async def served(
    scorer: Scorer,
    *,
    fast: Scorer | None = None,
    settings: Settings | None = None,
    clock: Callable[[], float] = time.monotonic,
    fusion: Fusion | None = None,
) -> AsyncIterator[ServedModel]:
    """A served model on the CPU with a separate engine, which is closed at the end."""
    settings = settings or Settings(device="cpu")
    files = files_of(scorer, fast=fast, depth=settings.cascade_depth, fusion=fusion)
    serving = assemble([files], settings, clock=clock)
    yield serving.models.default
    await serving.models.close()


def ranked(ranking: Ranking) -> list[tuple[int, float]]:
    """The index in the request and the score of each candidate, best first."""
    return [(candidate.index, candidate.score) for candidate in ranking.candidates]

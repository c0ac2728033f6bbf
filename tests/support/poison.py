"""Batches that a scorer chokes on: those with the candidate "p"."""

from support.scorers import contains, word_id
from support.working import Dies

from bandrank.models.batch import ScoreBatch

POISON = word_id("p")


def fails(batch: ScoreBatch) -> None:
    """A batch with a poisoned candidate raises an ordinary error."""
    if contains(batch, POISON):
        raise RuntimeError("choked")


def dies(batch: ScoreBatch) -> None:
    """A batch with a poisoned candidate ends the scoring thread."""
    if contains(batch, POISON):
        raise Dies

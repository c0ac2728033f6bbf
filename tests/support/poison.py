"""Batches that a scorer chokes on: those with the candidate "p"."""

from support.scorers import contains, word_id
from support.working import Dies

from bandrank.models.batch import ScoreBatch

POISON = word_id("p")


def fails(batch: ScoreBatch) -> None:
    """Raises an ordinary error for a batch with a poisoned candidate."""
    if contains(batch, POISON):
        raise RuntimeError("choked")


def dies(batch: ScoreBatch) -> None:
    """Ends the scoring thread at a batch with a poisoned candidate."""
    if contains(batch, POISON):
        raise Dies

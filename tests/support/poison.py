"""What a scorer chokes on: batches with the candidate "p", and a request that shows a bug of its own."""

from support.scorers import WatchedScorer, contains, word_id
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


class Buggy(WatchedScorer):
    """A scorer that raises an unexpected error for a candidate of 13 tokens, as the request BUG has one."""

    def num_rows(self, query_tokens: int, candidate_tokens: int) -> int:
        if candidate_tokens == 13:
            raise RuntimeError("secret")
        return super().num_rows(query_tokens, candidate_tokens)


BUG = {"query": "who", "candidates": ["the man " * 6]}

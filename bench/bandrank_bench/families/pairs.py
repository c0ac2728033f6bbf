"""Makes the token ids of pairs of texts, for both the reference and plain transformers."""

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from bandrank_bench.families.checkpoints import Published
from bandrank_bench.families.prompt import prompts
from bandrank_bench.workloads import Writer

Pairs = Callable[[str, Sequence[str]], list[list[int]]]  # the ids of a query with each of its passages


def pairs_of(published: Published, tokenizer: Tokenizer) -> Pairs:
    """Returns a function that makes pairs as the model's authors do."""
    if published.prompted:
        return lambda query, passages: prompts(tokenizer, query, passages)

    def framed(query: str, passages: Sequence[str]) -> list[list[int]]:
        return [pair.ids for pair in tokenizer.encode_batch_fast([(query, passage) for passage in passages])]

    return framed


def writer_of(published: Published, tokenizer: Tokenizer) -> Writer:
    """Returns a writer of texts of exact lengths, not counting the tokens around the texts of a pair."""
    (around,) = pairs_of(published, tokenizer)("a", ["a"])
    space = " " if published.prompted else ""  # in a prompt each text follows a space, which changes its pieces
    one = len(tokenizer.encode(f"{space}a", add_special_tokens=False).ids)
    return Writer(tokenizer, space=space, special_tokens=len(around) - 2 * one)

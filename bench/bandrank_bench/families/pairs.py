"""A pair of texts as the token ids that a model is given: the same for the reference and for plain transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from bandrank_bench.families.checkpoints import Published
from bandrank_bench.families.prompt import prompts
from bandrank_bench.workloads import Writer

Pairs = Callable[[str, Sequence[str]], list[list[int]]]  # the ids of a query with each of its passages


def load_tokenizer(checkpoint: Path) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


def pairs_of(published: Published, tokenizer: Tokenizer) -> Pairs:
    """How the model's authors put pairs to it."""
    if published.prompted:
        return lambda query, passages: prompts(tokenizer, query, passages)

    def framed(query: str, passages: Sequence[str]) -> list[list[int]]:
        return [pair.ids for pair in tokenizer.encode_batch_fast([(query, passage) for passage in passages])]

    return framed


def writer_of(published: Published, tokenizer: Tokenizer) -> Writer:
    """Writes texts of exact lengths; a pair has the tokens around them besides."""
    (around,) = pairs_of(published, tokenizer)("a", ["a"])
    space = " " if published.prompted else ""  # a prompt has one before each text, and its pieces are other ones then
    one = len(tokenizer.encode(f"{space}a", add_special_tokens=False).ids)
    return Writer(tokenizer, space=space, special_tokens=len(around) - 2 * one)

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
    """Writes texts of exact lengths; a pair has the tokens around them besides.

    Byte-level pieces of a word differ by whether a space precedes it. In a prompt one always does; elsewhere texts
    begin with one.
    """
    (around,) = pairs_of(published, tokenizer)("a", ["a"])
    one = len(tokenizer.encode("a", add_special_tokens=False).ids)
    byte_level = tokenizer.encode(" a", add_special_tokens=False).tokens[0].startswith("Ġ")
    return Writer(
        tokenizer,
        space=" " if byte_level else "",
        leading=byte_level and not published.prompted,
        special_tokens=len(around) - 2 * one,
    )

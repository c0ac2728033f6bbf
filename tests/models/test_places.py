"""The characters of a text that a passage's token ids stand for, whatever the text is made of."""

from collections.abc import Callable

import pytest
from support.decoders import qwen_tokenizer, tiny_candidate_first_reranker, tiny_decoder_reranker
from support.grouped import tiny_llama_reranker
from support.models import tiny_cross_encoder
from support.precomputing import tiny_colbert
from support.tokenizer import SENTENCE_ID, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from bandrank.models.places import places
from bandrank.models.scorer import Scorer
from bandrank.models.texts import TextEncoder

PLAIN = TextEncoder(tiny_tokenizer(), tiny_cross_encoder())
SENTENCES = TextEncoder(tiny_tokenizer(), tiny_cross_encoder(sentence_token=SENTENCE_ID))


def found(text: str, begin: int, end: int, encoder: TextEncoder = PLAIN) -> str:
    """Returns the characters that some token ids of a text stand for."""
    [(start, stop)] = places(encoder, [text], [(begin, end)])
    return text[start:stop]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("the man was  here", (0, 2), "the man"),
        ("the man was  here", (1, 3), "man was"),
        ("  the man ", (0, 99), "the man"),  # ids behind the pieces are a [SEP]
        ("working men", (0, 1), "w"),  # a piece is part of a word
        ("漢字の man", (1, 4), "字の man"),
        ("🐝 man 👩🏽 was", (1, 3), "man 👩🏽"),  # an emoji that the tokenizer does not know
        ("cafe\u0301 man", (0, 4), "cafe\u0301"),  # an accent belongs to its letter, and the tokenizer drops it
        ("a\u0301\u0323\u0302 man", (0, 1), "a\u0301\u0323\u0302"),
        ("the man", (2, 3), ""),
        ("", (0, 1), ""),
    ],
)
def test_token_ids_have_their_characters(text: str, tokens: tuple[int, int], expected: str) -> None:
    """Places are in code points, and include the marks that combine with the last character."""
    assert found(text, *tokens) == expected


def test_a_span_does_not_begin_with_a_mark() -> None:
    """If a tokenizer makes a combining mark a token, a passage that begins with it begins with its character."""
    vocabulary = {"a": 0, "\u0301": 1, "b": 2, "[UNK]": 3}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106  # no secret
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    encoder = TextEncoder(characters, tiny_cross_encoder())

    assert characters.encode("a\u0301b").ids == [0, 1, 2]
    assert places(encoder, ["a\u0301b"] * 2, [(1, 3), (0, 1)]) == [(0, 3), (0, 2)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((0, 4), "She was."),  # the sentence's token and three pieces
        ((1, 4), "She was."),
        ((1, 5), "She was."),  # and the next sentence's token
        ((3, 6), ".  No"),
        ((4, 7), "No."),
        ((4, 5), ""),  # a sentence's token alone
        ((2, 99), "was.  No. you"),
    ],
)
def test_sentence_tokens_stand_for_nothing(tokens: tuple[int, int], expected: str) -> None:
    """The indices of token ids count the sentence tokens too."""
    (ids,), _ = SENTENCES.candidates(SENTENCES.pieces([" She was.  No. you\n"]), query_tokens=2)

    assert [index for index, token in enumerate(ids) if token == SENTENCE_ID] == [0, 4, 7]
    assert found(" She was.  No. you\n", *tokens, SENTENCES) == expected


def test_what_a_template_puts_in_front_stands_for_nothing() -> None:
    """ColBERT's candidates begin with [CLS] and a marker."""
    encoder = TextEncoder(tiny_tokenizer(), tiny_colbert())

    assert found("the man was", 0, 3, encoder) == "the"
    assert found("the man was", 3, 5, encoder) == "man was"
    assert found("the man was", 0, 2, encoder) == ""


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("42 bees", (0, 1), ""),  # the space before it is a piece of its own
        ("42 bees", (0, 2), "4"),
        ("42 bees", (1, 4), "42 bees"),
        ("bees are", (0, 1), "bees"),  # here the space is part of the first piece
        ("bees are", (1, 9), " are"),
        ("bees", (2, 9), ""),
    ],
)
@pytest.mark.parametrize("scorer", [tiny_decoder_reranker, tiny_candidate_first_reranker])
def test_words_around_a_text_stand_for_nothing(
    text: str, tokens: tuple[int, int], expected: str, scorer: Callable[[], Scorer]
) -> None:
    """A decoder's candidates are tokenised together with the words around them."""
    encoder = TextEncoder(qwen_tokenizer(), scorer())

    assert found(text, *tokens, encoder) == expected


def test_a_span_that_begins_with_words_before_a_text_begins_with_its_first_piece() -> None:
    """As without such words, spaces before the first piece are not part of it."""
    encoder = TextEncoder(tiny_tokenizer(), tiny_llama_reranker())

    assert found("\nthe man ", 0, 99, encoder) == found("\nthe man ", 0, 99) == "the man"


def test_each_text_has_places_of_its_own() -> None:
    assert places(PLAIN, ["the man", "man", "was the man"], [(1, 2), (0, 1), (0, 2)]) == [(4, 7), (0, 3), (0, 7)]
    assert places(PLAIN, [], []) == []

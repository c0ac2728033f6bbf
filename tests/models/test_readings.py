"""What a scorer reads of a text: the same token ids as it is served with, each at its place in the text."""

import random

import pytest
from support.models import random_text, tiny_cross_encoder
from support.tokenizer import SENTENCE_ID, tiny_tokenizer
from support.variants import VARIANTS

from bandrank.models.readings import read_pair
from bandrank.models.texts import TextEncoder

TEXTS = ["", "  ", "The man!  She said: über 🐝 they're\n", " Who. Is he? \u2003She was.  ", "蜜蜂 and the man"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_ids_are_those_that_are_served(variant: str) -> None:
    """The ids are equal for every architecture and template, whether the text is cut or not."""
    encoder = TextEncoder(tiny_tokenizer(), VARIANTS[variant]())
    rng = random.Random(1)
    for text in [*TEXTS, random_text(rng, 300), " ".join(f"{random_text(rng, 9)}." for _ in range(40))]:
        for query in ("who is the man", random_text(rng, 600)):
            asked, candidate = read_pair(encoder, query, text)
            query_ids, _ = encoder.query(query)
            (ids,), (cut,) = encoder.candidates(encoder.pieces([text]), query_tokens=len(query_ids))

            assert [token.id for token in asked.tokens] == query_ids.tolist()
            assert [token.id for token in candidate.tokens] == ids.tolist()
            assert (candidate.read_to < len(text)) == (cut > 0)


@pytest.mark.parametrize("variant", ["cross_encoder sparse long", "cross_encoder sentences", "bi_encoder mean"])
@pytest.mark.parametrize("text", TEXTS)
def test_places_are_those_of_the_pieces(variant: str, text: str) -> None:
    """A piece stands for the characters at its place, in code points; a token that was added has no place."""
    _, candidate = read_pair(TextEncoder(tiny_tokenizer(), VARIANTS[variant]()), "who", text)

    placed = [token for token in candidate.tokens if token.start is not None]
    for token in placed:
        assert token.start is not None
        assert token.end is not None
        assert token.start < token.end
        characters = text[token.start : token.end].lower().replace("ü", "u")
        assert token.piece in {characters, f"##{characters}", "[UNK]"}
    starts = [token.start for token in placed]
    assert starts == sorted(starts, key=lambda start: start or 0)
    kept = "".join(text[token.start : token.end] for token in placed)
    assert kept == "".join(text.split())
    assert all(token.piece.startswith("[") for token in candidate.tokens if token.start is None)


def test_what_is_cut_begins_where_reading_ends() -> None:
    """A query and a candidate are cut at their limits of tokens."""
    model = tiny_cross_encoder(positions=32, max_query_tokens=5, long_candidates="truncate")
    encoder = TextEncoder(tiny_tokenizer(), model)
    query, text = "who is the man that she was", "he " * 50
    asked, candidate = read_pair(encoder, query, text)

    assert query[: asked.read_to] == "who is the man "
    assert len(candidate.tokens) == 32 - 1 - 5
    assert candidate.read_to == 3 * 25


def test_a_sentence_token_stands_for_no_characters() -> None:
    """A sentence token is placed before each sentence."""
    encoder = TextEncoder(tiny_tokenizer(), VARIANTS["cross_encoder sentences"]())
    _, candidate = read_pair(encoder, "who", "  He is. She was! ")

    before = [
        following.start
        for token, following in zip(candidate.tokens, candidate.tokens[1:], strict=False)
        if token.id == SENTENCE_ID
    ]
    assert before == [2, 9]

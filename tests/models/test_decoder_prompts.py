"""The token ids of a decoder's prompt: for any texts those of its authors' code, and which words are cut."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoders import PUBLISHED, save_decoder, tiny_decoder
from support.prompts import Pair, contextual_pair, gemma_pair, mxbai_pair, qwen3_pair
from transformers import GemmaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from bandrank.models.architectures.decoder_reranker import DecoderReranker
from bandrank.models.loading import load_model
from bandrank.models.readings import read_pair
from bandrank.models.texts import TextEncoder
from bandrank.models.wording import Wording

CONTEXTUAL = "ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b"
SHAPES = PUBLISHED | {CONTEXTUAL: PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]}
CASES = {
    "Qwen/Qwen3-Reranker-0.6B": (Qwen3ForCausalLM, qwen3_pair),
    CONTEXTUAL: (Qwen3ForCausalLM, contextual_pair),
    "mixedbread-ai/mxbai-rerank-base-v2": (Qwen2ForCausalLM, mxbai_pair),
    "BAAI/bge-reranker-v2-gemma": (GemmaForCausalLM, gemma_pair),
}
QWEN = pytest.mark.parametrize("case", [name for name in CASES if "gemma" not in name], indirect=True)
QUERY_FIRST = pytest.mark.parametrize("case", [name for name in CASES if name != CONTEXTUAL], indirect=True)
PARTS = [*" \n\t:?.,<>|'\"019aeséE", "\u0301", "\u00a0", "🐝", "蜜", "<|im_end|>", "<think>", "no", " bees"]
AWKWARD = st.lists(st.sampled_from(PARTS)).map("".join)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TextEncoder, Pair]:
    """A scorer's text encoder, and the way in which its authors put a pair together."""
    kind, pair = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param.rpartition("/")[2])
    save_decoder(folder, tiny_decoder(kind, SHAPES[request.param]))
    model = load_model(str(folder))
    return TextEncoder(model.tokenizer, model.scorer), pair


def ids_of(encoder: TextEncoder, query: str, document: str, instruction: str = "") -> tuple[list[int], list[int]]:
    """Returns the ids of a query and of a candidate with all that the prompt puts around them."""
    asked, _ = encoder.query(query, instruction)
    (candidate,), _ = encoder.candidates(encoder.pieces([document]), query_tokens=len(asked))
    return [*asked], [*candidate]


@settings(max_examples=150)
@given(query=AWKWARD, document=AWKWARD, instruction=AWKWARD)
def test_the_ids_are_those_of_the_whole_text(
    case: tuple[TextEncoder, Pair], query: str, document: str, instruction: str
) -> None:
    """A query that is tokenised once for all candidates has the ids that it has in one text with each of them."""
    encoder, pair = case
    asked, candidate = ids_of(encoder, query, document, instruction)
    config = encoder.scorer.config
    whole = [*config.prompt.head, *candidate, *asked] if config.candidate_first else [*asked, *candidate]

    assert whole == pair(encoder.tokenizer, instruction, query, document)


@QUERY_FIRST
def test_the_end_is_never_cut(case: tuple[TextEncoder, Pair]) -> None:
    """A candidate that is too long loses its last words, which are counted, not the end of the prompt."""
    encoder, pair = case
    scorer = encoder.scorer
    assert isinstance(scorer, DecoderReranker)
    config = replace(scorer.config, max_candidate_tokens=500)
    short = TextEncoder(encoder.tokenizer, DecoderReranker(config))
    whole = pair(encoder.tokenizer, "", "bees?", "the sun " * 1000)
    asked, _ = short.query("bees?")

    (candidate,), (cut,) = short.candidates(short.pieces(["the sun " * 1000]), query_tokens=len(asked))

    tail = list(config.prompt.tail)
    assert [*asked, *candidate] == [*whole[: len(asked) + 500 - len(tail)], *tail]
    assert cut == len(whole) - len(asked) - 500


@QWEN
def test_what_follows_a_query_is_never_cut(case: tuple[TextEncoder, Pair]) -> None:
    """A query that is too long loses its last words; the words of the prompt behind it stay."""
    encoder, _ = case
    scorer = encoder.scorer
    assert isinstance(scorer, DecoderReranker)
    config = replace(scorer.config, max_tokens=600, max_query_tokens=400)
    short = TextEncoder(encoder.tokenizer, type(scorer)(config))
    whole, none = encoder.query("the sun " * 500)

    asked, cut = short.query("the sun " * 500)

    assert none == 0
    assert len(asked) == 400
    assert asked[-3:].tolist() == whole[-3:].tolist()
    assert asked[:380].tolist() == whole[:380].tolist()
    assert cut > 0
    assert cut == pytest.approx(len(whole) - 400, abs=3)  # where the text is cut, no piece joins it with what follows


@pytest.mark.parametrize("length", [3, 2000])
def test_readings(case: tuple[TextEncoder, Pair], length: int) -> None:
    """The ids that /explain names are those that are served, each with its place in its own text."""
    encoder, _ = case
    scorer = encoder.scorer
    assert isinstance(scorer, DecoderReranker)
    config = replace(scorer.config, max_tokens=600, max_query_tokens=400, max_candidate_tokens=900)
    short = TextEncoder(encoder.tokenizer, type(scorer)(config))
    query, document = "né bees? " * length, "the 7 suns 🐝 " * length

    asked, candidate = read_pair(short, query, document, instruction="why?")

    read = [[token.id for token in reading.tokens] for reading in (asked, candidate)]
    assert read == [*ids_of(short, query, document, "why?")]
    for text, reading in ((query, asked), (document, candidate)):
        places = [(token.start, token.end) for token in reading.tokens if token.start is not None]
        covered = {index for start, end in places for index in range(start, end or 0)}
        # The cut may fall inside a character of several pieces.
        assert covered - {reading.read_to} == set(range(reading.read_to))
        assert (reading.read_to == len(text)) == (length == 3)


def test_a_wording_says_where_the_texts_are() -> None:
    """The text stands in a wording once, and so does an instruction."""
    twice = "{instruction} {text} {instruction}"
    for wrong in (("{query}", ""), ("{text}{text}", ""), ("{text}", "{text}"), ("{text}", twice)):
        with pytest.raises(ValueError, match="a wording needs"):
            Wording(*wrong)
    wording = Wording("a {text} b", "{instruction}: {text}")

    assert wording.around() == ("a ", " b")
    assert wording.around("{text}") == ("{text}: ", "")
    assert Wording("{text}", "{text} {instruction}").around("why?") == ("", " why?")
    assert Wording("{instruction} {text}").around("why?") == ("{instruction} ", "")  # the model's own words

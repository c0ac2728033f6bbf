"""The best passage of a candidate: the characters that the scorer read, which have the same score alone."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from support.accounts import ACCOUNT
from support.decoders import tiny_candidate_first_reranker
from support.dense_bert import full_score
from support.models import (
    random_scorer,
    random_text,
    save_cross_encoder,
    score_batch,
    tiny_bi_encoder,
    tiny_cross_encoder,
    tiny_hf_cross_encoder,
)
from support.scorers import encoded_lookup, word_id
from support.serving import served
from support.tokenizer import SEP_ID, tiny_tokenizer
from support.variants import VARIANTS

from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.candidates import CandidateStore
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.ranking import Ranking
from bandrank.engine.registry import CallCandidate, CandidateRegistry
from bandrank.engine.served import Models, ServedModel
from bandrank.models import hf
from bandrank.models.architectures import ARCHITECTURES, CandidateFirstReranker, CrossEncoder
from bandrank.models.architectures.joint import PairScorer
from bandrank.models.layers.patterns import sparse
from bandrank.models.readings import Token, read_pair
from bandrank.models.scorer import Scorer
from bandrank.models.texts import Reach, TextEncoder
from bandrank.models.wording import Wording
from bandrank.settings import Settings

TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32
QUERY = "who was the man"
LENGTHS = [100, 3, 57, 58, 0, 300]  # in words of one piece; 57 fit beside the query


def texts_of(seed: int) -> list[str]:
    """A text of each length, with more spaces than needed."""
    rng = random.Random(seed)
    return [f"\n{random_text(rng, length)} ".replace(" the ", "   THE ") for length in LENGTHS]


def candidates_of(ranking: Ranking) -> list[tuple[int, float]]:
    return [(each.index, each.score) for each in ranking.candidates]


async def ask(
    model: ServedModel, texts: list[str], *, query: str = QUERY, options: Options = DEFAULT, **more: object
) -> Answer:
    """The answer to a call that asks for passages."""
    candidates = [CallCandidate(text) for text in texts]
    call = Call(query, candidates, options=replace(options, best_passages=True), **more)  # type: ignore[arg-type]
    models = Models([model])
    return await answer(call, models, CandidateRegistry(CandidateStore(None, max_bytes=0), models), ACCOUNT)


async def test_the_characters_of_a_passage_have_its_score_alone(tmp_path: Path) -> None:
    """The score is that of a forward pass of `transformers` over these characters, and also the candidate's score."""
    theirs = tiny_hf_cross_encoder(positions=64)
    texts = texts_of(1)
    async with served(hf.load(save_cross_encoder(tmp_path, theirs))) as model:
        found = await ask(model, texts)
        plain = await model.rank(QUERY, texts)

    def ids(text: str) -> list[int]:
        return [*tiny_tokenizer().encode(text, add_special_tokens=False).ids, SEP_ID]

    assert candidates_of(found.ranking) == candidates_of(plain)
    assert found.ranking.reports[0].num_tokens == plain.reports[0].num_tokens
    for candidate in found.ranking.candidates:
        text, passage = texts[candidate.index], found.passages[candidate.index]
        assert passage.score == candidate.score
        alone = full_score(theirs, ids(QUERY), ids(text[passage.start : passage.end]))
        assert alone == pytest.approx(candidate.score, abs=TOLERANCE)
        whole = (passage.start, passage.end) == (0, len(text))
        assert whole == (LENGTHS[candidate.index] <= 57)
        if not whole:
            assert text[passage.start : passage.end] == text[passage.start : passage.end].strip()
            assert len(text[passage.start : passage.end].split()) <= 57


def joined_at_the_end() -> CandidateFirstReranker:
    """A scorer whose prompt goes on with a "y" right behind a candidate, with which "the" is one piece."""
    config = tiny_candidate_first_reranker().config
    prompt = replace(config.prompt, candidate=Wording("{text}y"), closing=(word_id("y"),))
    return random_scorer(CandidateFirstReranker(replace(config, prompt=prompt)), 0)


BY_PASSAGES: dict[str, Callable[[], Scorer]] = {
    variant: make for variant, make in VARIANTS.items() if issubclass(ARCHITECTURES[variant.split()[0]], PairScorer)
}


def passages_of(
    scorer: PairScorer, query_tokens: int, candidate: Sequence[Token]
) -> Iterator[tuple[Sequence[Token], Sequence[Token]]]:
    """Cuts a candidate by the rule in its simplest form: each passage is a run of tokens, of which the next one has the
    second half, and a copy of the candidate's last tokens.
    """
    room = scorer.config.max_tokens - scorer.leading - query_tokens
    start = 0
    while start + room < len(candidate):
        yield candidate[start : start + room - scorer.closing], candidate[len(candidate) - scorer.closing :]
        start += (room + 1 - scorer.closing) // 2
    yield candidate[start:], []


@pytest.mark.parametrize("most", [None, 150])
@pytest.mark.parametrize("variant", [*BY_PASSAGES, "joined"])
async def test_the_passage_that_is_told_scores_best_alone(variant: str, most: int | None) -> None:
    """Of every scorer that reads query and candidate together, for texts that are cut and texts that are not; the
    characters are those of the passage's tokens.
    """
    scorer = (BY_PASSAGES | {"joined": joined_at_the_end})[variant]()
    assert isinstance(scorer, PairScorer)
    texts = [f"{text} the" for text in [*texts_of(14), *texts_of(16), random_text(random.Random(11), 700)]]
    limit = None if most is None else most + scorer.candidate_template.num_added
    encoder = TextEncoder(tiny_tokenizer(), scorer, max_candidate_tokens=limit)
    async with served(scorer) as model:
        found = await ask(model, texts, options=Options(Reach(tokens=most)))
        plain = await model.rank(QUERY, texts, options=Options(Reach(tokens=most)))

    assert candidates_of(found.ranking) == candidates_of(plain)
    if isinstance(scorer, CrossEncoder):
        scorer.lexical = None  # evidence is of the whole candidate, and chooses no passage
    for index, text in enumerate(texts):
        asked, read = read_pair(encoder, QUERY, text)
        query = [token.id for token in asked.tokens]
        passages = [*passages_of(scorer, len(query), read.tokens)]
        with torch.inference_mode():
            batches = [score_batch([query], [[[token.id for token in (*own, *end)]]]) for own, end in passages]
            scores = [scorer(batch).item() for batch in batches]
        best = scores.index(max(scores))
        places = [(token.start, token.end) for token in passages[best][0] if token.start is not None]
        whole = len(passages) == 1 and read.read_to == len(text)
        passage = found.passages[index]

        assert (passage.start, passage.end) == ((0, len(text)) if whole else (places[0][0], places[-1][1]))
        if variant != "cross_encoder lexical":
            assert passage.score == pytest.approx(scores[best], abs=TOLERANCE)


async def test_requests_that_ask_and_that_do_not_get_their_own() -> None:
    """Requests with passages under different limits, and one without passages, share the scoring thread."""
    texts = texts_of(2)
    reaches = [Reach(), Reach(tokens=60), Reach(passages=2), Reach(tokens=5)]
    async with served(tiny_cross_encoder(positions=64)) as model:
        alone = [await ask(model, texts, options=Options(reach)) for reach in reaches]
        plain = await model.rank(QUERY, texts)
        asked = [ask(model, texts, options=Options(reach)) for reach in reaches]
        *together, among = await asyncio.gather(*asked, model.rank(QUERY, texts))

    for one, other in zip(alone, together, strict=True):
        assert dict(candidates_of(cast("Answer", other).ranking)) == pytest.approx(
            dict(candidates_of(one.ranking)), abs=TOLERANCE
        )
        spans = [{index: (p.start, p.end) for index, p in each.passages.items()} for each in (one, other)]
        assert spans[0] == spans[1]
    assert dict(candidates_of(cast("Ranking", among))) == pytest.approx(dict(candidates_of(plain)), abs=TOLERANCE)
    assert plain.passages == {}


async def test_a_candidate_that_is_cut_has_what_was_read() -> None:
    """A cut text's passage runs from its first word to the last within the limit; a short text is its own passage."""
    texts = texts_of(3)
    async with served(tiny_cross_encoder(positions=64)) as model:
        found = await ask(model, texts, options=Options(Reach(tokens=5)))

    for index, text in enumerate(texts):
        passage = found.passages[index]
        words = text[passage.start : passage.end]
        assert words.split() == text.split()[:5]
        assert words == (words.strip() if len(text.split()) > 5 else text)


async def test_only_the_results_have_passages() -> None:
    texts = texts_of(4)
    async with served(tiny_cross_encoder(positions=64)) as model:
        found = await ask(model, texts, top_n=2)

    assert found.passages.keys() == {each.index for each in found.ranking.candidates[:2]}


async def test_texts_that_come_twice_have_the_same_passage() -> None:
    """A text that comes twice is scored once."""
    [text, *_] = texts_of(5)
    async with served(tiny_cross_encoder(positions=64)) as model:
        found = await ask(model, [text, "man", text])

    assert found.passages[0] == found.passages[2]


async def test_each_candidate_may_have_a_query_of_its_own() -> None:
    """Passages are listed by the candidate's index in the call."""
    texts = texts_of(6)
    queries = ["who", "who was the man", "is it"] * 2
    candidates = [CallCandidate(text, query=query) for text, query in zip(texts, queries, strict=True)]
    async with served(tiny_cross_encoder(positions=64)) as model:
        models = Models([model])
        registry = CandidateRegistry(CandidateStore(None, max_bytes=0), models)
        found = await answer(Call("", candidates, options=Options(best_passages=True)), models, registry, ACCOUNT)
        alone = [await ask(model, [text], query=query) for text, query in zip(texts, queries, strict=True)]

    spans = {index: (passage.start, passage.end) for index, passage in found.passages.items()}
    assert spans == {index: (each.passages[0].start, each.passages[0].end) for index, each in enumerate(alone)}


async def test_in_a_cascade_candidates_of_the_accurate_stage_have_passages() -> None:
    """The other candidates keep the score of the fast stage, which reads them whole."""
    texts = texts_of(7)
    settings = Settings(device="cpu", cascade_depth=2)
    accurate = tiny_cross_encoder(positions=64, pattern=sparse(4))
    async with served(accurate, fast=tiny_bi_encoder(), settings=settings) as model:
        found = await ask(model, texts, strategy="cascade")
        alone = {index: await ask(model, [text], strategy="accurate") for index, text in enumerate(texts)}

    last = [each.index for each in found.ranking.candidates if each.stage == "accurate"]
    assert len(last) == 2
    assert found.passages.keys() == set(last)
    for index in last:
        expected = alone[index].passages[0]
        passage = found.passages[index]
        assert (passage.start, passage.end) == (expected.start, expected.end)
        assert passage.score == pytest.approx(expected.score, abs=TOLERANCE)


async def test_in_a_cascade_that_is_cut_before_the_accurate_stage_there_are_none() -> None:
    accurate = tiny_cross_encoder(positions=64, pattern=sparse(4))
    async with served(accurate, fast=tiny_bi_encoder()) as model:
        found = await ask(model, texts_of(7), strategy="cascade", budget_s=1e-6)

    assert {each.stage for each in found.ranking.candidates} == {"fast"}
    assert found.ranking.degraded
    assert not found.passages


async def test_scores_that_are_mixed_in_choose_whose_passage_is_told() -> None:
    """Mixed scores decide which candidates are results, but a passage's own score is still the scorer's."""
    texts = texts_of(8)
    async with served(tiny_cross_encoder(positions=64)) as model:
        call = Call(
            QUERY,
            [CallCandidate(text, score=float(-index)) for index, text in enumerate(texts)],
            top_n=1,
            first_stage_weight=1.0,
            options=Options(best_passages=True),
        )
        models = Models([model])
        found = await answer(call, models, CandidateRegistry(CandidateStore(None, max_bytes=0), models), ACCOUNT)
        alone = await ask(model, texts)

    assert found.passages.keys() == {0}
    assert found.passages[0].score == pytest.approx(alone.passages[0].score, abs=TOLERANCE)


async def test_a_scorer_that_reads_candidates_whole_has_none() -> None:
    async with served(encoded_lookup(man=1.0)) as model:
        found = await ask(model, ["she", "man"])

    assert candidates_of(found.ranking) == [(1, 1.0), (0, 0.0)]
    assert found.passages == {}


async def test_passages_are_told_of_a_request_that_was_admitted_before_the_stop() -> None:
    """Stopping waits both for scoring and for looking up passages."""
    texts = texts_of(9)
    async with served(tiny_cross_encoder(positions=64)) as model:
        asked = asyncio.ensure_future(ask(model, texts))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(model.engine.close())
        found = await asked
        await closing

    assert found.passages.keys() == {*range(len(texts))}

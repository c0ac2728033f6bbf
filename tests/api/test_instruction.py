"""Instructions, which say what a query is for, from the request to the prompt of a model that takes one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from support.app import assert_error, client_of, running_app
from support.decoders import PUBLISHED, last_logits, qwen_tokenizer, save_decoder, tiny_decoder
from support.dialects import DASHSCOPE
from support.models import change_weights, random_scorer, tiny_bi_encoder
from support.prompts import qwen3_pair
from support.scorers import encoded_lookup, lookup
from transformers import Qwen3ForCausalLM

from bandrank.dtype_choice import choose_dtype
from bandrank.errors import ScoringFailed
from bandrank.models.architectures.bi_encoder import BiEncoder
from bandrank.models.loading import load_model
from bandrank.models.wording import Wording
from bandrank.settings import Settings

QUERY, INSTRUCTION = "where do bees live?", "Find texts about honey."
CANDIDATES = ["In hives.", "Honey is made from nectar.", "no " * 50]
NOT_APPLIED = "instruction was not applied; no model that ranked takes one"
REQUEST: dict[str, Any] = {"query": QUERY, "candidates": CANDIDATES, "raw_scores": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-Reranker."""
    theirs = tiny_decoder(Qwen3ForCausalLM, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"])
    return save_decoder(tmp_path_factory.mktemp("model"), theirs)


def expected(folder: Path, instruction: str) -> list[float]:
    """The scores that transformers computes from whole prompts."""
    theirs = Qwen3ForCausalLM.from_pretrained(folder).eval()
    tokenizer = qwen_tokenizer()
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    logits = [last_logits(theirs, qwen3_pair(tokenizer, instruction, QUERY, text)) for text in CANDIDATES]
    return [float(each[yes] - each[no]) for each in logits]


def scores_of(answer: Any) -> list[float]:
    """The scores in the order of the request."""
    return [each["relevance_score"] for each in sorted(answer["results"], key=lambda each: each["index"])]


async def test_a_served_decoder_reads_the_instruction(folder: Path) -> None:
    """`/rerank`, `/explain` and the dialects of Cohere, SGLang, DashScope and vLLM take an instruction. vLLM has two
    fields for it, of which `chat_template_kwargs` takes precedence; null and an empty text mean none.
    """
    async with client_of(Settings(model=str(folder), device="cpu")) as client:
        for instruction in ("", INSTRUCTION):
            ours = (await client.post("/rerank", json=REQUEST | {"instruction": instruction})).json()
            foreign = {"query": QUERY, "documents": CANDIDATES, "raw_scores": True, "instruction": instruction or None}
            theirs = (await client.post("/v2/rerank", json=foreign)).json()
            sglang = {"query": QUERY, "documents": CANDIDATES, "instruct": instruction or None}
            qwens = {name: value for name, value in foreign.items() if name != "instruction"} | sglang
            cloud = (await client.post("/v1/reranks", json=qwens)).json()
            bare = (await client.post("/sglang/v1/rerank", json=sglang)).json()
            parameters = {"input": sglang, "parameters": {"instruct": instruction or None}}
            native = (await client.post(DASHSCOPE, json=parameters)).json()["output"]["results"]
            asked = {"query": QUERY, "candidate": CANDIDATES[1], "instruction": instruction}
            kwargs = {"chat_template_kwargs": {"instruction": instruction, "enable_thinking": False}}
            also = (await client.post("/rerank", json=foreign | kwargs | {"instruction": "Judge."})).json()
            pairs = {"text_1": QUERY, "text_2": CANDIDATES, "use_activation": False}
            for way in ({"instruction": instruction or None}, kwargs):
                scored = (await client.post("/score", json=pairs | way)).json()
                vllms = [each["score"] for each in scored["data"]]
                assert vllms == pytest.approx(expected(folder, instruction), abs=1e-5)
                assert "meta" not in scored
            explained = (await client.post("/explain", json=asked)).json()

            scores = expected(folder, instruction)
            for answer in (ours, theirs, cloud, *([also] if instruction else [])):
                assert scores_of(answer) == pytest.approx(scores, abs=1e-5)
                assert "warnings" not in answer["meta"]
            chances = {each["index"]: each["score"] for each in bare}
            assert [(each["index"], each["relevance_score"]) for each in native] == [*chances.items()]
            assert [chances[index] for index in range(len(scores))] == pytest.approx(
                torch.tensor(scores).sigmoid().tolist(), abs=1e-5
            )
            assert explained["raw_score"] == pytest.approx(scores[1], abs=1e-5)
            pieces = [token["piece"] for token in explained["stages"][0]["query"]["tokens"]]
            assert ("Ġhoney" in pieces) == bool(instruction)

    assert max(abs(a - b) for a, b in zip(expected(folder, ""), expected(folder, INSTRUCTION), strict=True)) > 0.01


async def test_an_encoder_reads_the_instruction_beside_the_query_alone() -> None:
    """The query is encoded with the instruction in it, and the candidates' cached representations still hold."""
    config = replace(tiny_bi_encoder().config, query_wording=Wording(instructed="{instruction} {text}"))
    async with running_app(random_scorer(BiEncoder(config), seed=0)) as app:
        plain, told, same = [
            (await app.rerank(REQUEST | more)).json()
            for more in ({}, {"instruction": INSTRUCTION}, {"query": f"{INSTRUCTION} {QUERY}"})
        ]

    assert scores_of(told) == scores_of(same) != scores_of(plain)
    assert told["meta"]["stages"][0]["cache_hits"] == len(CANDIDATES)
    assert "warnings" not in told["meta"]


async def test_a_model_that_takes_none_warns() -> None:
    """The model ranks without the instruction, and the answer says so, whatever stages ran."""
    async with running_app(lookup(the=1.0), fast=encoded_lookup()) as app:
        for path, texts in (("/rerank", "candidates"), ("/v1/rerank", "documents")):
            body = {"query": QUERY, texts: CANDIDATES}
            silent = (await app.client.post(path, json=body)).json()
            warned = (await app.client.post(path, json=body | {"instruction": INSTRUCTION})).json()

            assert "warnings" not in silent["meta"]
            assert warned["meta"]["warnings"] == [NOT_APPLIED]
            assert scores_of(warned) == scores_of(silent)
        for way in ({"instruction": INSTRUCTION}, {"chat_template_kwargs": {"instruction": INSTRUCTION}}):
            ranked = (await app.client.post("/rerank", json={"query": QUERY, "documents": CANDIDATES} | way)).json()
            scored = (await app.client.post("/score", json={"text_1": QUERY, "text_2": CANDIDATES} | way)).json()

            assert ranked["meta"]["warnings"] == [NOT_APPLIED]
            assert scored["meta"] == {"warnings": [NOT_APPLIED]}


async def test_an_instruction_is_bounded() -> None:
    async with running_app(lookup()) as app:
        for wrong in ("x" * 4097, 7, ["x"]):
            ours = await app.client.post("/rerank", json=REQUEST | {"instruction": wrong})
            assert_error(ours, 422, "invalid_input")
            for way in ({"instruction": wrong}, {"chat_template_kwargs": {"instruction": wrong}}):
                pairs = await app.client.post("/score", json={"text_1": QUERY, "text_2": CANDIDATES} | way)
                ranked = await app.client.post("/rerank", json={"query": QUERY, "documents": CANDIDATES} | way)
                assert_error(pairs, 422, "invalid_input")
                assert_error(ranked, 422, "invalid_input")


async def test_a_query_is_measured_without_the_prompt(folder: Path) -> None:
    """`max_tokens_per_query` limits the word pieces of the query alone, as in vLLM, without the words around it."""
    num_pieces = len(qwen_tokenizer().encode(QUERY, add_special_tokens=False).ids)
    async with client_of(Settings(model=str(folder), device="cpu")) as client:
        for limit in (num_pieces - 1, num_pieces):
            body = {"query": QUERY, "documents": CANDIDATES, "max_tokens_per_query": limit}
            answer = (await client.post("/v2/rerank", json=body)).json()

            assert ("warnings" in answer["meta"]) == (limit < num_pieces)


async def test_states_too_large_for_float16_are_named(folder: Path, tmp_path: Path) -> None:
    """The service does not start if a score is not a number, and the error says in what dtype to serve the model."""
    large = save_decoder(tmp_path, Qwen3ForCausalLM.from_pretrained(folder))
    change_weights(
        large,
        lambda weights: {name: each * 1e5 if "down_proj" in name else each for name, each in weights.items()},
    )
    with pytest.raises(ScoringFailed, match="too large for float16; serve it in bfloat16 or float32"):
        async with client_of(Settings(model=str(large), device="cpu", dtype="float16")):
            pass
    async with client_of(Settings(model=str(large), device="cpu", dtype="bfloat16")) as client:
        response = await client.post("/rerank", json=REQUEST)

    assert response.status_code == httpx.codes.OK


def test_decoders_compute_in_bfloat16_on_a_gpu(folder: Path) -> None:
    """Decoders do so if the setting is "auto"; other models compute in float16."""
    decoder = load_model(str(folder))

    assert decoder.scorer.overflows_float16
    assert not lookup().overflows_float16
    assert choose_dtype("auto", torch.device("cuda"), decoder) == torch.bfloat16

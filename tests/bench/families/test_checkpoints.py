"""Small checkpoints of each family, in which all systems read the same model."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from bandrank_bench.cpu.agreement import check
from bandrank_bench.families.checkpoints import FAMILIES, Published, write_checkpoint
from bandrank_bench.families.memory import OURS, THEIRS, probe
from bandrank_bench.families.pairs import pairs_of, writer_of
from bandrank_bench.families.peers import plain_transformers
from bandrank_bench.families.timing import open_ours, reference_scores
from bandrank_bench.systems import System
from bandrank_bench.workloads import QUERY_TOKENS, WORKLOADS, load_tokenizer

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
SMALL |= {"initializer_range": 0.15}  # as far from 0 as weights of these sizes are drawn


@pytest.fixture(scope="module", params=FAMILIES)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Published, Path]:
    """A family's format at a small size, and its checkpoint."""
    published = FAMILIES[request.param]
    heads = {"num_key_value_heads": 2, "head_dim": 16} if published.prompted else {}
    published = replace(published, settings=published.settings | SMALL | heads)
    return published, write_checkpoint(published, tmp_path_factory.mktemp("family") / "model")


def test_all_systems_give_the_scores_of_the_reference(small: tuple[Published, Path]) -> None:
    """Both bandrank and padded batches of plain transformers score passages of unequal length as the reference does."""
    published, checkpoint = small
    request = WORKLOADS["W1"].request(writer_of(published, load_tokenizer(checkpoint)), 0).head(20)
    reference = reference_scores(published, checkpoint, request)
    padded = plain_transformers(published, checkpoint, torch.float32)

    with ExitStack() as stack:
        systems = [System("transformers", "fp32", "full", "peer", padded), *open_ours(stack, checkpoint)]
        agreements = check(systems, request, {"full": reference})

    assert [one.system for one in agreements][:2] == ["transformers", "bandrank fp32"]
    assert np.std(reference) > 0.02


@pytest.mark.parametrize("workload", ["W1", "W2"])
def test_pairs_have_the_tokens_they_claim(small: tuple[Published, Path], workload: str) -> None:
    """The token counts include what the family puts around the texts."""
    published, checkpoint = small
    tokenizer = load_tokenizer(checkpoint)
    writer = writer_of(published, tokenizer)
    request = WORKLOADS[workload].request(writer, 3)

    pairs = pairs_of(published, tokenizer)(request.query, request.passages)

    assert [len(ids) for ids in pairs] == request.pair_tokens
    if workload == "W2":
        assert set(request.pair_tokens) == {QUERY_TOKENS + 151 + writer.special_tokens}


def test_special_tokens_of_a_pair_are_those_of_the_family(small: tuple[Published, Path]) -> None:
    """The counts are those of the published tokenizers; a prompt is about as long as with a vocabulary of 150,000."""
    published, checkpoint = small
    around = writer_of(published, load_tokenizer(checkpoint)).special_tokens

    assert around in {"XLM-R-base": (4,), "ModernBERT-base": (3,), "Qwen3-0.6B": range(65, 95)}[published.name]


def test_the_chat_template_is_the_prompt(small: tuple[Published, Path]) -> None:
    """The messages of a pair render to the token ids that the model card puts together."""
    published, checkpoint = small
    if not published.prompted:
        pytest.skip("an encoder has no prompt")
    query, passage = "how do bees find home?", " By the sun, and 2 landmarks.\n"
    (expected,) = pairs_of(published, load_tokenizer(checkpoint))(query, [passage])
    messages = [{"role": "query", "content": query}, {"role": "document", "content": passage}]

    rendered = AutoTokenizer.from_pretrained(checkpoint).apply_chat_template(messages, return_dict=False)

    assert expected == rendered


@pytest.mark.parametrize("system", [OURS, THEIRS])
def test_a_request_adds_memory(small: tuple[Published, Path], system: str) -> None:
    """Each document is a point with the tokens of its pair and the memory that it adds, which is not negative."""
    published, checkpoint = small

    points = probe(published, checkpoint, system, [[128], [512]])

    assert [point.tokens for point in points] == [128, 512]
    assert min(point.added_bytes for point in points) >= 0  # 0 if it fits into pages that the process has

"""MixEncoder against the equations of its paper and code, written out for one candidate, row by row, head by head."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from support.dense_scorers import (
    attention,
    batch_scores,
    bert_of,
    feed_forward,
    linear,
    norm,
    pair_scores,
    similarity_of,
    states_of,
    weights_of,
)
from support.models import HIDDEN_SIZE, NUM_HEADS, as_served, random_ids, score_batch
from support.precomputing import tiny_mix_encoder
from support.tokenizer import CLS_ID, SEP_ID
from torch import Tensor
from transformers import BertModel

from bandrank.models.architectures import MixEncoder
from bandrank.models.architectures.mix_encoder import MixEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.families import build_encoder

# float32 in another order of summation. The vectors are about 6 long: 1e-4 is 3e-6 of what their product could be.
CLOSE = {"cosine": 1e-5, "dot": 1e-4, "scaled_dot": 1e-4}

VARIANTS: dict[str, dict[str, Any]] = {
    "a": {"paper": "a"},
    "a cosine": {"paper": "a", "similarity": "cosine"},
    "a codes": {"paper": "a", "strategy": "C"},
    "b": {"paper": "b", "num_layers": 4},
    "b cosine": {"paper": "b", "num_layers": 4, "similarity": "cosine"},
    "b, bi-encoder": {"paper": "b", "num_layers": 4, "bi_encoder_weight": 20.0, "similarity": "scaled_dot"},
    "c": {"paper": "c", "num_layers": 4},
    "c mean": {"paper": "c", "num_layers": 4, "pool": "mean"},
    "c, bi-encoder": {
        "num_layers": 4,
        "interaction_layers": (1,),
        "num_embeddings": 2,
        "interaction_weight": 0.4,
        "bi_encoder_weight": -3.0,
        "bi_encoder_bias": 0.7,
    },
    "c codes": {"paper": "c", "num_layers": 4, "strategy": "C"},
    "three, early": {"num_layers": 4, "interaction_layers": (0, 2), "num_embeddings": 3, "pool": "last"},
    "three, early, mean": {"num_layers": 4, "interaction_layers": (1,), "num_embeddings": 3},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def context_embeddings(scorer: MixEncoder, bert: BertModel, ids: list[int]) -> Tensor:
    """Returns E_0 of a candidate, (k, hidden_size)."""
    codes = scorer.state_dict()["context_codes"]
    if scorer.config.strategy == "C":
        states = states_of(bert, ids)[-1]
        return torch.softmax(codes @ states.T, -1) @ states
    words = bert.embeddings.word_embeddings(torch.tensor(ids))
    return bert(inputs_embeds=torch.cat([codes, words])[None]).last_hidden_state[0, : len(codes)]  # type: ignore[no-any-return]


def dense_score(scorer: MixEncoder, bert: BertModel, query: list[int], candidate: list[int]) -> float:
    """The score of one candidate."""
    config = scorer.config
    entering = states_of(bert, query)
    last = config.pool == "last"
    embeddings, summary = context_embeddings(scorer, bert, candidate), torch.zeros(HIDDEN_SIZE)
    cosine = similarity_of(embeddings.mean(0), entering[-1].mean(0), "cosine")
    bi_encoder = config.bi_encoder_weight * cosine + config.bi_encoder_bias
    gate = weights_of(scorer, "gate.")
    old = gate.get("old.weight", torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE))  # missing where H is always zeros
    gate_weight = torch.cat([gate["hint.weight"], gate["new.weight"], old], 1)

    for index, layer in enumerate(config.interaction_layers):
        own = bert.encoder.layer[layer].attention.self
        keys, values = own.key(entering[layer]), own.value(entering[layer])
        chunk = weights_of(scorer, f"interactions.{index}.chunk.")
        queries, own_keys, own_values = linear(embeddings, chunk, "qkv").chunk(3, -1)
        attended = torch.stack([
            attention(row, torch.cat([keys, own_keys]), torch.cat([values, own_values]), NUM_HEADS) for row in queries
        ])  # fmt: skip
        hint = embeddings[-1] if last else embeddings.mean(0)  # of the incoming embeddings
        embeddings = feed_forward(
            norm(linear(attended, chunk, "attention_out") + embeddings, chunk, "attention_norm"), chunk
        )

        compressed = linear(hint, weights_of(scorer, f"interactions.{index}."), "compress_query")
        new = linear(attention(compressed, keys, values, NUM_HEADS), chunk, "attention_out")
        share = torch.sigmoid(gate_weight @ torch.cat([hint, new, summary]) + gate["hint.bias"])
        mixed = share * new + (1 - share) * summary  # without a residual
        summary = feed_forward(norm(mixed, chunk, "attention_norm"), chunk)

    representation = embeddings[:-1].mean(0) if last and len(embeddings) > 1 else embeddings.mean(0)
    return bi_encoder + config.interaction_weight * similarity_of(representation, summary, config.similarity)


def texts(seed: int = 0) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Four queries with 7, 0, 1 and 3 candidates, as the templates of strategy "S" make them."""
    rng = random.Random(seed)
    queries = [[CLS_ID, *random_ids(rng, num_pieces)] for num_pieces in (6, 3, 0, 11)]
    lengths = [[0, 1, 8, 9, 33, 5, 70], [], [12], [40, 2, 2]]
    return queries, [[random_ids(rng, num_pieces) for num_pieces in group] for group in lengths]


def with_cls(scorer: MixEncoder, candidates: list[list[list[int]]]) -> list[list[list[int]]]:
    """Returns the candidates with the prefix of the scorer's template."""
    prefix = scorer.candidate_template.prefix
    return [[[*prefix, *ids] for ids in group] for group in candidates]


def dense_scores(scorer: MixEncoder, queries: list[list[int]], candidates: list[list[list[int]]]) -> list[float]:
    """Returns the scores of a whole batch, one pair at a time."""
    bert = bert_of(weights_of(scorer, "encoder."), num_heads=NUM_HEADS)
    return pair_scores(partial(dense_score, scorer, bert), queries, candidates)


@every_variant
@pytest.mark.parametrize("prepared", [False, True], ids=["as trained", "as served"])
def test_scores_are_the_equations(variant: str, prepared: bool) -> None:
    scorer = tiny_mix_encoder(**VARIANTS[variant])
    queries, candidates = texts()
    candidates = with_cls(scorer, candidates)
    expected = dense_scores(scorer, queries, candidates)

    scores = batch_scores(scorer, queries, candidates, prepared=prepared)

    assert scores == pytest.approx(expected, abs=CLOSE[scorer.config.similarity])
    assert max(expected) - min(expected) > 1000 * CLOSE[scorer.config.similarity]


@every_variant
def test_many_candidates_of_a_short_query_are_the_equations(variant: str) -> None:
    """For more candidates than a block, the keys and values of so short a query are absorbed."""
    scorer = as_served(tiny_mix_encoder(**VARIANTS[variant]))
    query = [[CLS_ID, SEP_ID]]
    _, candidates = texts()
    some = with_cls(scorer, candidates)[0]

    with torch.inference_mode():
        scores = scorer(score_batch(query, [some * 200])).view(200, len(some))

    expected = torch.tensor(dense_scores(scorer, query, [some])).expand_as(scores)
    torch.testing.assert_close(scores, expected, rtol=0, atol=CLOSE[scorer.config.similarity])


def test_query_layers_behind_the_last_interaction_are_not_run() -> None:
    """With stored candidates, a query needs no more than the keys and values of the last interaction layer."""
    scorer = tiny_mix_encoder(num_layers=4, interaction_layers=(0, 2))
    queries, candidates = texts()
    batch = score_batch(queries, candidates)
    run: list[str] = []
    with torch.inference_mode():
        stored = ScoreBatch(batch.queries, scorer.encode_candidates(batch.candidates), batch.cu_candidates)
        for name, module in scorer.encoder.layers.named_modules():
            if name.endswith((".qkv", ".up")):
                module.register_forward_pre_hook(lambda *_, name=name: run.append(name))

        scorer.score(stored)

    assert run == ["0.qkv", "0.up", "1.qkv", "1.up", "2.qkv"]


def test_the_incoming_embeddings_are_the_hint() -> None:
    """Changing the embeddings' projections changes E, but with one layer not the hint, and so not the summary H."""
    scorer = tiny_mix_encoder(paper="a", similarity="dot")
    queries, candidates = texts()
    config = scorer.config.encoder
    seen: list[Tensor] = []
    scorer.interactions[0].register_forward_hook(lambda *call: seen.append(call[2][1]))
    with torch.inference_mode():
        before = scorer(score_batch(queries, candidates))
        scorer.interactions[0].chunk.qkv.weight[: 2 * config.hidden_size] *= 2  # type: ignore[index, union-attr]
        after = scorer(score_batch(queries, candidates))

    assert (before - after).abs().max() > 1e-2
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)


def test_variants_of_the_paper() -> None:
    """Variant a interacts in the last layer, b in the last three, and c in the last three with two embeddings, one of
    them the hint.
    """
    encoder = tiny_mix_encoder(num_layers=6).config.encoder
    a, b, c = (MixEncoderConfig.of_paper(name, encoder, cls_id=1, sep_id=2) for name in ("a", "b", "c"))

    assert (a.interaction_layers, a.num_embeddings) == ((5,), 1)
    assert (b.interaction_layers, b.num_embeddings) == ((3, 4, 5), 1)
    assert (c.interaction_layers, c.num_embeddings, c.pool) == ((3, 4, 5), 2, "last")


def test_initialised_from_an_encoder() -> None:
    """The towers copy the encoder, an interaction layer copies the layer of its depth, and compress_query copies that
    layer's query weights.
    """
    scorer = tiny_mix_encoder(num_layers=4, interaction_layers=(1, 3))
    donor = tiny_mix_encoder(num_layers=4, seed=1)
    codes, gate = scorer.context_codes.clone(), scorer.gate.hint.weight.clone()

    assert scorer.initialise(donor.encoder) is scorer

    ours, theirs = scorer.state_dict(), build_encoder(donor.config.encoder).state_dict() | donor.encoder.state_dict()
    assert all(torch.equal(ours[f"encoder.{name}"], tensor) for name, tensor in theirs.items())
    for index, layer in enumerate((1, 3)):
        of_layer = weights_of(donor.encoder, f"layers.{layer}.")
        assert all(torch.equal(ours[f"interactions.{index}.chunk.{name}"], of_layer[name]) for name in of_layer)
        for part in ("weight", "bias"):
            query = of_layer[f"qkv.{part}"][:HIDDEN_SIZE]
            assert torch.equal(ours[f"interactions.{index}.compress_query.{part}"], query)
    assert torch.equal(scorer.context_codes, codes)
    assert torch.equal(scorer.gate.hint.weight, gate)
    assert all(parameter.requires_grad for parameter in scorer.parameters())


def test_texts_are_cut_each_by_itself() -> None:
    """The k vectors, words and [SEP] fill max_candidate_tokens; with strategy "C", [CLS], words and [SEP] do."""
    rows = tiny_mix_encoder(num_embeddings=3, max_candidate_tokens=20)
    codes = tiny_mix_encoder(num_embeddings=3, max_candidate_tokens=20, strategy="C")

    assert rows.candidate_template.apply([9] * 30) == ([9] * 16 + [SEP_ID], 14)
    assert codes.candidate_template.apply([9] * 30) == ([CLS_ID] + [9] * 18 + [SEP_ID], 12)

"""An encoder other than BERT, made of other building blocks, serves every architecture."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from support.deberta import tiny_deberta_config
from support.decoders import tiny_decoder_config
from support.dense_scorers import pair_scores
from support.grouped import tiny_embedding_gemma2_config, tiny_gemma3_config, tiny_llama_config
from support.models import (
    HIDDEN_SIZE,
    NUM_HEADS,
    random_ids,
    random_scorer,
    score_batch,
    tiny_bi_encoder,
    tiny_cross_encoder,
    tiny_encoder_config,
)
from support.modernbert import tiny_encoder_config as tiny_modernbert_config
from support.modernbert import tiny_sequence_cross_encoder
from support.other_encoder import OtherConfig, dense_states, other_config, other_encoder
from support.precomputing import (
    tiny_colbert,
    tiny_deformer,
    tiny_mix_encoder,
    tiny_poly_encoder,
    tiny_splade,
    tiny_virt,
)
from support.t5 import tiny_t5_config
from support.tokenizer import CLS_ID, vocab_size

from bandrank.models.architectures import ARCHITECTURES, CrossEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.bert import ElectraConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import ENCODERS, HEADS
from bandrank.models.encoders.llama import EuroBertConfig, MistralConfig, UltraBertConfig
from bandrank.models.encoders.static import StaticConfig
from bandrank.models.layers.packing import pack
from bandrank.models.layers.patterns import FULL, longformer, narrowed, sparse
from bandrank.models.layers.window_plans import WindowPlans, plan_within
from bandrank.models.plain import parse
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPattern

CLOSE = 1e-4  # float32 through four layers without norms on the residuals; sums over rows
WITH_BERT: dict[str, Callable[[], Scorer]] = {
    "cross_encoder": lambda: tiny_cross_encoder(pattern=sparse(4), max_tokens=64),
    "sequence_cross_encoder": lambda: tiny_sequence_cross_encoder(max_tokens=64),
    "bi_encoder": lambda: tiny_bi_encoder(max_tokens=512, similarity="dot"),
    "mix_encoder": lambda: tiny_mix_encoder(num_layers=4, paper="b"),
    "poly_encoder": lambda: tiny_poly_encoder(separate_towers=True, scaled=True),
    "colbert": lambda: tiny_colbert(attend_to_masks=True),  # else some rows of local layers would see no other row
    "deformer": tiny_deformer,
    "splade": lambda: tiny_splade(score_scale=0.01),
    "virt": tiny_virt,
}
ENCODER_CONFIGS: dict[str, Callable[[], EncoderConfig]] = {
    "other": other_config,
    "deberta": lambda: replace(tiny_deberta_config(), num_layers=4),
    "electra": lambda: ElectraConfig(vocab_size(), HIDDEN_SIZE, 4, NUM_HEADS, 64, 512, embedding_size=16),
    "gemma3": lambda: tiny_gemma3_config(num_layers=4),
    "embedding_gemma2": lambda: tiny_embedding_gemma2_config(num_layers=4),
}
OF_OTHER_SHAPES: dict[str, Callable[[], EncoderConfig]] = {
    "decoder": tiny_decoder_config,
    "embedding_gemma2": tiny_embedding_gemma2_config,
    "eurobert": lambda: tiny_llama_config(kind=EuroBertConfig),
    "gemma3": tiny_gemma3_config,
    "llama": tiny_llama_config,
    "mistral": lambda: tiny_llama_config(kind=MistralConfig),
    "modernbert": tiny_modernbert_config,
    "static": lambda: StaticConfig(vocab_size(), HIDDEN_SIZE),
    "t5": tiny_t5_config,
    "ultrabert": lambda: tiny_llama_config(kind=UltraBertConfig),
}
ON_ENCODERS = sorted(ARCHITECTURES.keys() - {"decoder_reranker", "candidate_first_reranker", "seq2seq_reranker"})
# DeBERTa's attention has no mask for single keys, and a MixEncoder's layers have heads of one width.
NOT = {("colbert", "deberta"), ("mix_encoder", "embedding_gemma2")}
every_pair = pytest.mark.parametrize(("architecture", "kind"), sorted({*product(ON_ENCODERS, ENCODER_CONFIGS)} - NOT))


@pytest.fixture(autouse=True)
def _in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "other", other_encoder)


def scorer_of(architecture: str, kind: str = "other") -> Scorer:
    """Returns a random scorer of the architecture on an encoder other than BERT."""
    scorer = WITH_BERT[architecture]()
    return random_scorer(type(scorer)(replace(scorer.config, encoder=ENCODER_CONFIGS[kind]())), seed=0)


def texts_of(scorer: Scorer) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Returns two queries with five candidates in the scorer's templates."""
    rng = random.Random(1)
    queries = [scorer.query_template.apply(random_ids(rng, n)[:-1])[0] for n in (5, 9)]
    lengths = [[0, 8, 33], [90, 2]]
    return queries, [[scorer.candidate_template.apply(random_ids(rng, n)[:-1])[0] for n in group] for group in lengths]


@every_pair
def test_an_architecture_runs_on_it(architecture: str, kind: str) -> None:
    """A score depends neither on other candidates nor on when its candidate was encoded."""
    scorer = scorer_of(architecture, kind)
    queries, candidates = texts_of(scorer)
    batch = score_batch(queries, candidates)
    with torch.inference_mode():
        together = scorer(batch)
        alone = pair_scores(lambda query, ids: scorer(score_batch([query], [[ids]])).item(), queries, candidates)
        apart = [scorer.encode_candidates(Ragged.from_token_ids([each]))[0] for group in candidates for each in group]
        stored = scorer.score(ScoreBatch(batch.queries, Ragged.from_tensors(apart), batch.cu_candidates))

    assert together.isfinite().all()
    assert together[:3].std() > 100 * CLOSE
    torch.testing.assert_close(torch.tensor(alone), together, rtol=0, atol=CLOSE)
    torch.testing.assert_close(stored, together, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("local_window", [1, 3, 500])
def test_scores_are_those_of_dense_tensors(local_window: int) -> None:
    """Attention is full, but local in every second layer, where a candidate's rows see their neighbours, [CLS] and the
    query.
    """
    scorer = tiny_cross_encoder(pattern=FULL)
    config = other_config(local_window=local_window)
    scorer = random_scorer(CrossEncoder(replace(scorer.config, encoder=config)), seed=0)
    rng = random.Random(0)
    query, candidates = random_ids(rng, 6), [random_ids(rng, n) for n in (0, 3, 40)]
    weights = scorer.encoder.state_dict()
    expected = []
    with torch.inference_mode():
        for candidate in candidates:
            index = torch.arange(1 + len(query) + len(candidate))
            in_candidate = index > len(query)
            far = ((index[:, None] - index).abs() > local_window) & in_candidate & in_candidate[:, None]
            states = dense_states(weights, config, [CLS_ID, *query, *candidate], ~far)
            expected.append(scorer.head(states[:1]))

        scores = scorer(score_batch([query], [candidates]))

    torch.testing.assert_close(scores, torch.cat(expected), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("pattern", [FULL, sparse(2)])
@pytest.mark.parametrize("kind", ["bert", "other"])
def test_the_last_layer_for_cls_alone(kind: str, pattern: AttentionPattern) -> None:
    """The rows of [CLS] are those of the whole layer, whether its projections can be absorbed or not."""
    encoder = (tiny_cross_encoder() if kind == "bert" else scorer_of("cross_encoder")).encoder
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 4)], [[random_ids(rng, n) for n in (7, 20)]])
    packed = pack(batch, pattern, cls_id=CLS_ID, sentence_token=None)
    ids, positions, types = torch.from_numpy(packed.numbers)
    plan = encoder.plan(packed.rows, pattern)
    with torch.inference_mode():
        hidden = encoder.embed(ids, positions, types)

        result = encoder.forward_cls(hidden, positions, plan, 2)

        torch.testing.assert_close(result, encoder(hidden, positions, plan)[:2], rtol=0, atol=CLOSE)
        entering = encoder(hidden, positions, plan, layers=slice(1))
        assert torch.equal(encoder.forward_cls(entering, positions, plan, 2, first=1), result)


@pytest.mark.parametrize("pattern", [FULL, sparse(2)])
def test_plans_of_several_windows_travel_with_a_batch(pattern: AttentionPattern) -> None:
    """Bound to tables on the device, the plans attend as before; the group of them does not attend by itself."""
    scorer = scorer_of("cross_encoder")
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 4)], [[random_ids(rng, n) for n in (7, 20)]])
    rows = pack(batch, pattern, cls_id=CLS_ID, sentence_token=None).rows
    plan = scorer.encoder.plan(rows, pattern)
    qkv = torch.randn(rows.num_rows, 3, 4, 8)
    assert isinstance(plan, WindowPlans)
    assert list(plan.plans) == [None, 3]

    bound = plan.bind(to_device(plan.host_tables, torch.device("cpu")))

    assert bound.signature == plan.signature
    for window, each in plan.plans.items():
        assert torch.equal(plan_within(bound, window).attend(qkv), each.attend(qkv))
    with pytest.raises(NotImplementedError):
        plan.attend(qkv)


def test_a_family_may_score_by_another_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Architectures that score a [CLS] state take the head of the encoder's family."""
    monkeypatch.setitem(HEADS, "other", lambda config: torch.nn.Linear(config.hidden_size, 1, bias=False))

    heads = {name: scorer_of(name).state_dict() for name in ("cross_encoder", "deformer")}

    for weights in heads.values():
        assert {name for name in weights if name.startswith("head.")} == {"head.weight"}


def test_the_class_of_a_config_is_its_kind() -> None:
    """Configs from before there were kinds are BERT's."""
    fields = {
        "vocab_size": 9,
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 8,
        "max_positions": 8,
    }

    assert parse(EncoderConfig, fields) == EncoderConfig(*fields.values())
    assert parse(EncoderConfig, fields | {"kind": "other", "local_window": 2}) == OtherConfig(
        *fields.values(), local_window=2
    )
    with pytest.raises(TypeError, match="unknown keys: local_window"):
        parse(EncoderConfig, fields | {"local_window": 2})
    with pytest.raises(ValueError, match="kind: 'rwkv' is none of 'bert'"):
        parse(EncoderConfig, fields | {"kind": "rwkv"})


def test_every_kind_is_known_before_another_model_loads() -> None:
    """A checkpoint of ours needs none of the modules that read Hugging Face's folders."""
    program = (
        "from bandrank.models.encoders.families import ENCODERS, EncoderConfig\n"
        "for kind in ENCODERS: EncoderConfig.variant({'kind': kind})"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_kind_is_built_as_its_config_says() -> None:
    """The keys of `ENCODERS` are the kinds that configs carry, and each layer is an object of its own."""
    shape = tiny_encoder_config()
    for kind, build in ENCODERS.items():
        if kind in OF_OTHER_SHAPES:
            encoder = build(OF_OTHER_SHAPES[kind]())
        else:
            encoder = build(
                EncoderConfig.variant({"kind": kind})(
                    shape.vocab_size,
                    shape.hidden_size,
                    2,
                    shape.num_heads,
                    shape.intermediate_size,
                    shape.max_positions,
                )
            )
        assert encoder.config.kind == kind
        layers = [encoder.layer(index) for index in range(encoder.config.num_layers)]
        assert not layers or encoder.layer(-1) is layers[-1]
        assert all(above is not below for above, below in pairwise(layers))


def test_patterns_are_narrowed() -> None:
    """The smaller of the two windows counts; everything else stays."""
    assert narrowed(FULL, None) is FULL
    assert narrowed(sparse(4), 64) == sparse(4)
    assert narrowed(sparse(4), 2) == sparse(2)
    assert narrowed(sparse(None), 64) == sparse(64)
    assert narrowed(FULL, 2) == longformer(2)

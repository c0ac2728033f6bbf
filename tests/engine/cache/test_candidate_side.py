"""A fingerprint changes with what representations depend on and nothing else, tensor by tensor and field by field."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from support.models import random_ids, random_scorer, tiny_static_bi_encoder
from support.tokenizer import tiny_tokenizer
from support.variants import PRECOMPUTING, VARIANTS

from bandrank.engine.cache.keys import fingerprint
from bandrank.models.layers.dense import DenseConfig
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.wording import Wording

Encoded = tuple[Wording, list[int], list[int], bytes, bytes | None]

# Another value of every field of a config, by architecture; of the encoder's fields only those that change no shape.
ENCODER = {"encoder.num_layers": 4, "encoder.num_heads": 2, "encoder.layer_norm_eps": 1e-3}
TEXTS = ENCODER | {"cls_id": 7, "sep_id": 8, "max_query_tokens": 20, "max_candidate_tokens": 40}
WORDINGS = {"query_wording": Wording("find {text}"), "candidate_wording": Wording("title: {text}")}
CALIBRATION = {"score_scale": 2.0, "score_bias": 0.5}
OTHER_VALUES: dict[str, dict[str, Any]] = {
    "bi_encoder": ENCODER
    | {"cls_id": 7, "sep_id": 8, "pooling": "max", "joined": ("max",), "similarity": "euclidean", "max_tokens": 40}
    | {"dense": (DenseConfig(8),), "size": 8, "of_queries": tiny_static_bi_encoder().config}
    | WORDINGS
    | CALIBRATION,
    "colbert": TEXTS
    | {"mask_id": 9, "query_marker": 10, "candidate_marker": 11, "skipped_ids": (), "dim": 8, "floor": True}
    | {"similarity": "l2", "augment": False, "attend_to_masks": True, "dense": (DenseConfig(16),)}
    | WORDINGS
    | CALIBRATION,
    "deformer": TEXTS | {"split": 2, "candidate_cls": True},
    "mix_encoder": TEXTS
    | {"interaction_layers": (1,), "num_embeddings": 2, "pool": "last", "similarity": "scaled_dot"}
    | {"interaction_weight": 0.5, "bi_encoder_weight": 0.5, "bi_encoder_bias": 0.5, "lexical": LexicalConfig(9.0)},
    "poly_encoder": TEXTS | {"num_codes": 3, "reduction": "mean", "output_scaling": 0.5} | CALIBRATION,
    "splade": TEXTS | {"pooling": "sum", "num_logs": 3, "most_terms": 5} | WORDINGS | CALIBRATION,
    "virt": TEXTS | {"similarity": "dot"} | CALIBRATION,
}
# Values for single variants, instead of those above or besides them: the variants' own values differ.
SWITCHED: dict[str, dict[str, Any]] = {
    "bi_encoder mean": {"separate_towers": True},
    "bi_encoder apart": {"separate_towers": False},
    "mix_encoder b": {"strategy": "C"},
    "mix_encoder lexical": {"strategy": "C", "interaction_layers": (0,), "similarity": "cosine"},
    "mix_encoder codes dot": {"strategy": "S"},
    "splade": {"query_table": True},
    "splade table": {"query_table": False, "pooling": "max"},
    "poly_encoder learnt": {"codes": "first", "reduction": "cls", "separate_towers": True, "scaled": False},
    "poly_encoder first apart": {"codes": "learnt", "separate_towers": False, "scaled": True},
}
QUERY_OF_MIX = {
    "interaction_layers",
    "pool",
    "similarity",
    "interaction_weight",
    "bi_encoder_weight",
    "bi_encoder_bias",
    "max_query_tokens",
}
# Fields of the query side: they change only how a query is read or scored, not what is stored of candidates.
QUERY_FIELDS: dict[str, set[str]] = {
    "bi_encoder mean": {"query_wording", "of_queries", *CALIBRATION},
    "colbert v2": {
        *(
            "mask_id",
            "query_marker",
            "query_wording",
            "similarity",
            "augment",
            "attend_to_masks",
            "floor",
            "max_query_tokens",
            *CALIBRATION,
        ),
    },
    "deformer": {"encoder.num_layers", "cls_id", "max_query_tokens"},
    "mix_encoder b": {*QUERY_OF_MIX, "cls_id"},
    "mix_encoder lexical": {*QUERY_OF_MIX, "cls_id"},
    "mix_encoder codes dot": QUERY_OF_MIX,
    "poly_encoder learnt": {"codes", "num_codes", "scaled", "max_query_tokens", *CALIBRATION},
    "poly_encoder first apart": {"codes", "num_codes", "scaled", "max_query_tokens", *CALIBRATION},
    "splade": {"query_table", "query_wording", "max_query_tokens", *CALIBRATION},
    "splade table": {"query_table", "query_wording", "max_query_tokens", *CALIBRATION},
    "virt": {"similarity", "max_query_tokens", *CALIBRATION},
}


def fingerprint_of(scorer: Scorer) -> bytes:
    """The fingerprint of a scorer with the tiny tokenizer and float32 payloads."""
    return fingerprint(scorer, tiny_tokenizer().to_str(), "float32")


@torch.inference_mode()
def encoded(scorer: Scorer) -> Encoded:
    """All that is stored of some texts: the wording, the tokens cut, lengths, and the bytes of representations and kept
    words.
    """
    rng = random.Random(0)
    applied = [scorer.candidate_template.apply(random_ids(rng, count)[:-1]) for count in (0, 1, 9, 33, 300)]
    found = scorer.encode_candidates(Ragged.from_token_ids([ids for ids, _ in applied]))
    wording = scorer.candidate_template.wording
    kept = None if found.words is None else found.words.to_bytes().tobytes()
    return wording, [cut for _, cut in applied], found.lengths.tolist(), found.values.numpy().tobytes(), kept


@pytest.mark.parametrize("variant", PRECOMPUTING)
def test_a_fingerprint_covers_the_tensors_that_candidates_are_encoded_with(variant: str) -> None:
    """Each tensor in turn is changed, and the fingerprint changes if and only if the representations do."""
    scorer = VARIANTS[variant]()
    before, as_encoded = fingerprint_of(scorer), encoded(scorer)
    seen: dict[bool, list[str]] = {True: [], False: []}
    for number, (name, tensor) in enumerate(scorer.state_dict().items()):
        kept = tensor.clone()
        tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)), alpha=0.1)
        is_other = fingerprint_of(scorer) != before
        assert (encoded(scorer) != as_encoded) == is_other, name
        seen[is_other].append(name)
        tensor.copy_(kept)

    assert (fingerprint_of(scorer), encoded(scorer)) == (before, as_encoded)
    assert seen[True]
    assert bool(seen[False]) == (scorer.candidate_side().weights.keys() != scorer.state_dict().keys())


@pytest.mark.parametrize("variant", QUERY_FIELDS)
def test_a_fingerprint_covers_the_fields_that_candidates_are_encoded_by(variant: str) -> None:
    """Each field in turn gets another value over the same weights; only fields of the query side change nothing."""
    scorer = VARIANTS[variant]()
    others = OTHER_VALUES[variant.split(maxsplit=1)[0]] | SWITCHED.get(variant, {})
    assert {name.split(".")[0] for name in others} == {field.name for field in fields(scorer.config)}
    before, as_encoded = fingerprint_of(scorer), encoded(scorer)
    same_fingerprint, same_encoded = set(), set()
    for name, value in others.items():
        changed = with_other(scorer, name, value)
        if fingerprint_of(changed) == before:
            same_fingerprint.add(name)
        if encoded(changed) == as_encoded:
            same_encoded.add(name)

    assert same_fingerprint == same_encoded == QUERY_FIELDS[variant]


def with_other(scorer: Scorer, name: str, value: Any) -> Scorer:
    """The same scorer with another value of one field; it shares all weights, except those whose shapes change."""
    *outer, field = name.split(".")
    inner = replace(scorer.config.encoder, **{field: value}) if outer else value
    config = replace(scorer.config, **{outer[0] if outer else field: inner})
    assert config != scorer.config
    changed = random_scorer(type(scorer)(config), seed=9)
    ours = scorer.state_dict()
    fitting = {
        name: ours[name] if name in ours and ours[name].shape == drawn.shape else drawn
        for name, drawn in changed.state_dict().items()
    }
    changed.load_state_dict(fitting, assign=True)
    return changed

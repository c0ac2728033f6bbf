"""DeBERTas that are refused with a reason, and the precision and kernels of others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.deberta import save_deberta, tiny_deberta_config
from support.models import as_served, score_batch, tiny_cross_encoder
from support.precomputing import tiny_colbert
from support.refusals import assert_refused
from support.tokenizer import SEP_ID

from bandrank.models import hf
from bandrank.models.architectures import ColBERT
from bandrank.models.layers.disentangled import Terms
from bandrank.models.prepared import prepare

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"conv_kernel_size": 3, "conv_act": "gelu"}, "conv_kernel_size 3"),
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu_new'"),
        ({"pooler_hidden_act": "mish"}, "pooler_hidden_act 'mish'"),
        ({"pooler_hidden_size": 16}, "pooler_hidden_size 16"),
        ({"embedding_size": 16}, "embedding_size 16"),
        ({"attention_head_size": 16}, "attention_head_size 16"),
        ({"relative_attention": False}, "relative_attention False"),
        ({"pos_att_type": ["p2c", "p2p"]}, r"pos_att_type \['p2c', 'p2p'\]"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    """Leaving these settings out would give other scores."""
    assert_refused(
        save_deberta(tmp_path),
        f"model_type 'deberta-v2' with {reason} is not supported; `bandrank models` lists",
        settings,
    )


def test_a_table_of_another_length_is_refused(tmp_path: Path) -> None:
    """Such a table would give buckets of distances the embeddings of others."""
    assert_refused(
        save_deberta(tmp_path), r"of another shape: \['encoder.relative.table.weight'\]", {"position_buckets": 64}
    )


def test_no_kernel_and_no_graph(tmp_path: Path) -> None:
    prepared = prepare(hf.load(save_deberta(tmp_path)), device=CPU, dtype=torch.float32, graphs=True)

    assert prepared.why_no_kernels == prepared.why_no_graphs() == "the kernels do not compute disentangled attention"


@pytest.mark.parametrize("terms", [Terms(), None])
def test_a_colbert_whose_queries_mask_keys_is_refused(terms: Terms | None) -> None:
    """Disentangled attention cannot mask keys, and without it the library's DeBERTa changes masked tokens too. The
    model is refused when it is loaded, not with each request.
    """
    with pytest.raises(ValueError, match="causal attention and DeBERTa cannot mask"):
        ColBERT(replace(tiny_colbert(attend_to_masks=False).config, encoder=tiny_deberta_config(terms=terms)))


def test_a_colbert_whose_queries_mask_none_scores() -> None:
    """All rows of a query, [MASK] rows too, attend to each other."""
    scorer = ColBERT(replace(tiny_colbert(attend_to_masks=True).config, encoder=tiny_deberta_config()))
    assert scorer(score_batch([[9, SEP_ID]], [[[9, SEP_ID]]])).isfinite().all()


def test_which_scorers_overflow_float16(tmp_path: Path) -> None:
    """A DeBERTa's states go beyond 65,504, the largest number of float16; a BERT's do not."""
    assert as_served(hf.load(save_deberta(tmp_path))).overflows_float16
    assert not tiny_cross_encoder().overflows_float16

"""XLM-RoBERTa with rotary positions as Jina AI's code saves it: jina-colbert-v2 against `transformers`, whose class has
the same tensors. Its cross-encoders are among those that are like BERT's.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import save, tiny, unigram_tokenizer
from support.jina_3 import NAME, QUERY, TEXTS, as_jina_saves_it, states
from support.models import as_served, change_weights, edit_json, write_json
from support.refusals import assert_refused
from support.text_scores import ids_of, scores_of_texts
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from bandrank.models import hf
from bandrank.models.architectures import ColBERT
from bandrank.models.layers.positions import Rotary
from bandrank.models.loading import load_model

CLOSE = 1e-5  # float32 in another order of summation
MARKERS = ["[QueryMarker]", "[DocumentMarker]"]
METADATA = {  # as jina-colbert-v2 has them
    "query_token_id": MARKERS[0],
    "doc_token_id": MARKERS[1],
    "query_maxlen": 32,
    "doc_maxlen": 300,
    "mask_punctuation": True,
    "attend_to_mask_tokens": True,
}


def colbert(folder: Path, metadata: dict[str, Any]) -> tuple[PreTrainedModel, Tensor]:
    """Writes a ColBERT as Stanford's library does. Returns the library's encoder and the projection.

    metadata: settings other than those of jina-colbert-v2.
    """
    tokenizer = unigram_tokenizer()
    tokenizer.add_special_tokens(MARKERS)
    model = tiny(NAME, vocab_size=tokenizer.get_vocab_size())
    linear = torch.randn(16, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    as_jina_saves_it(folder, model, architectures=["HF_ColBERT"])
    tokenizer.save(str(folder / "tokenizer.json"))
    change_weights(folder, lambda weights: weights | {"linear.weight": linear})
    write_json(folder / "artifact.metadata", METADATA | metadata)
    return model.roberta, linear


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@torch.inference_mode()
def test_a_colbert(seen: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """A marker follows the first token; a query has 32 rows, of whose masks the others see all or none."""
    encoder, linear = colbert(tmp_path, {"attend_to_mask_tokens": seen})
    model = load_model(str(tmp_path))
    assert isinstance(model.scorer, ColBERT)
    config = model.scorer.config
    query, texts = ids_of(model, QUERY, TEXTS)
    masks = [config.mask_id] * (32 - len(query))
    (of_query,) = states(encoder, [query + masks], unseen=0 if seen else len(masks))
    rows = normalize(of_query @ linear.T, dim=-1)
    expected = []
    for ids, of_text in zip(texts, states(encoder, texts), strict=True):
        kept = of_text[~torch.isin(torch.tensor(ids), torch.tensor(config.skipped_ids))]
        expected.append(float((rows @ normalize(kept @ linear.T, dim=-1).T).amax(1).sum()))
    spread = float(torch.tensor(expected).std())
    as_served(model.scorer, dtype)
    close = 10 * CLOSE if dtype is torch.float32 else 0.3 * spread

    assert [ids[1] for ids in (query, texts[0])] == [model.tokenizer.token_to_id(marker) for marker in MARKERS]
    assert (config.max_query_tokens, config.max_candidate_tokens) == (32, 300)
    assert spread > 0.5
    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx(expected, abs=close)


@pytest.mark.parametrize(
    ("settings", "rotary"),
    [({}, Rotary(20_000.0)), ({"rotary_emb_base": 169000.0}, Rotary(169_000.0)), (None, Rotary(10_000.0))],
)
def test_the_base_of_the_positions(settings: dict[str, Any] | None, rotary: Rotary, tmp_path: Path) -> None:
    """Without one, it is the default of the authors' class, which is half of the library's."""
    as_jina_saves_it(tmp_path, **settings or {})
    if settings is None:
        edit_json(tmp_path / "config.json", {}, remove=("rotary_emb_base",))

    assert hf.load(tmp_path).config.encoder.rotary == rotary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position_embedding_type": "alibi"}, "XLMRobertaFlash with {'position_embedding_type': 'alibi'} is not"),
        ({"position_embedding_type": "absolute"}, "XLMRobertaFlash with {'position_embedding_type': 'absolute'}"),
        ({"rotary_emb_interleaved": True}, "XLMRobertaFlash with {'rotary_emb_interleaved': True}"),
        ({"rotary_emb_scale_base": 512}, "XLMRobertaFlash with {'rotary_emb_scale_base': 512}"),
        ({"rotary_emb_dim": 4}, "XLMRobertaFlash with {'rotary_emb_dim': 4}"),
        ({"hidden_act": "gelu_new"}, "XLMRobertaFlash with {'hidden_act': 'gelu_new'}"),
        ({"num_hidden_layers": 1}, "config.json names 1 layers, the weights have 2"),
        ({"hidden_size": None}, "config.json has no number for hidden_size"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert_refused(as_jina_saves_it(tmp_path, **settings), message)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "longrope", "rope_theta": 20000.0, "factor": 4.0},
            "rotary positions of .*longrope.* are not supported",
        ),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta must be a number above 0, got 0"),
    ],
)
def test_other_positions_of_the_library_are_refused(rope: dict[str, Any], message: str, tmp_path: Path) -> None:
    edit_json(save(tmp_path, NAME) / "config.json", {"rope_parameters": rope})
    assert_refused(tmp_path, message)

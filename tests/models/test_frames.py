"""The tokens that a tokenizer's template puts around texts and pairs."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from support.models import save_bi_encoder, write_json
from support.modernbert import save_model, tiny_modernbert
from support.text_scores import scores_of_texts
from support.tokenizer import CLS_ID, SEP_ID, tiny_tokenizer
from tokenizers.processors import TemplateProcessing

from bandrank.models.loading import load_model

QUERY, TEXTS = "the man", ["the other king", "", "after the man " * 20]


def frame_pairs(folder: Path, pair: str) -> None:
    """Gives the tokenizer this template for pairs, and BERT's for single texts."""
    tokenizer = tiny_tokenizer()
    special = [("[CLS]", CLS_ID), ("[SEP]", SEP_ID)]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", "pad_token": "[PAD]"})


@pytest.mark.parametrize("separators", [1, 2, 3])
def test_separators_of_a_modernbert(separators: int, tmp_path: Path) -> None:
    """The tokenizer's template decides how many separators a pair has; a tokenizer like RoBERTa's has two."""
    folder = save_model(tmp_path, tiny_modernbert())
    frame_pairs(folder, f"[CLS] $A {'[SEP] ' * separators}$B [SEP]")
    library = CrossEncoder(str(folder), device="cpu")

    expected = library.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())

    assert scores_of_texts(load_model(str(folder)), QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("pair", ["[CLS] $A [SEP] [CLS] $B [SEP]", "$A $B"])
def test_pairs_do_not_concern_a_bi_encoder(pair: str, tmp_path: Path) -> None:
    """The tokenizer of cl-nagoya/ruri-v3, which is Llama's, begins the second text of a pair like the first one."""
    folder = save_bi_encoder(tmp_path)
    frame_pairs(folder, pair)
    library = SentenceTransformer(str(folder), device="cpu")

    expected = library.encode(TEXTS) @ library.encode(QUERY)

    assert scores_of_texts(load_model(str(folder)), QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=1e-5)

"""T5's tokenizer made from SentencePiece's file, the only one in most folders of re-rankers."""

from pathlib import Path

import pytest
from support.models import write_json
from support.t5 import t5_tokenizer
from transformers.convert_slow_tokenizer import import_protobuf

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.hf.files import load_tokenizer


def test_t5s_file(tmp_path: Path) -> None:
    """The ids are those of the library's tokenizer; another model's file is refused."""
    tokenizer, saved = t5_tokenizer(), import_protobuf().ModelProto()
    for token, score in tokenizer._vocab_scores:
        saved.pieces.add(piece=token, score=score)
    saved.trainer_spec.unk_id, saved.normalizer_spec.name = 2, "identity"
    write_json(tmp_path / "tokenizer_config.json", {"extra_ids": 0})
    (tmp_path / "spiece.model").write_bytes(saved.SerializeToString())
    text = " bees  find ñ </s> <unk>x\n"

    assert load_tokenizer(tmp_path).encode(text).ids == tokenizer(text)["input_ids"]
    write_json(tmp_path / "tokenizer_config.json", {})
    more = load_tokenizer(tmp_path)
    assert [more.id_to_token(len(tokenizer) + index) for index in (0, 99)] == ["<extra_id_99>", "<extra_id_0>"]

    saved.trainer_spec.model_type = 2
    for content, message in (
        (saved.SerializeToString(), "its pieces are no unigrams"),
        (b"\x0a\x7f", "damaged"),
        (b"", "its first pieces are not <pad>, </s>, <unk>"),
    ):
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(BadCheckpoint, match=f"not T5's: {message}; save the tokenizer again"):
            load_tokenizer(tmp_path)

"""Only a replica that would compute the same representation finds a cached one."""

from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from redis.crc import key_slot
from support.models import as_served, tiny_bi_encoder, tiny_cross_encoder
from support.tokenizer import TOKENIZER_FILE, tiny_tokenizer

from bandrank.engine.cache.keys import digest, fingerprint, redis_keys
from bandrank.models import checkpoint
from bandrank.models.scorer import Scorer


def fingerprint_of(scorer: Scorer, tokenizer: str | None = None) -> bytes:
    return fingerprint(scorer, tokenizer or tiny_tokenizer().to_str(), "float16")


def test_a_digest_is_blake2b() -> None:
    """A digest is 16 bytes over the text's UTF-8 bytes, as the keys already in Redis are."""
    assert digest("naïve 文") == blake2b("naïve 文".encode(), digest_size=16).digest()


def test_a_saved_and_loaded_scorer_keeps_its_fingerprint(tmp_path: Path) -> None:
    """Replicas that load the same folder share the cache, even if one starts later."""
    scorer = tiny_bi_encoder()
    checkpoint.save(scorer, tmp_path, tokenizer=TOKENIZER_FILE)

    assert fingerprint_of(checkpoint.load(tmp_path)) == fingerprint_of(scorer) == fingerprint_of(tiny_bi_encoder())
    assert len(fingerprint_of(scorer)) == 16


def test_everything_that_a_representation_depends_on_is_in_the_fingerprint() -> None:
    """The fingerprint covers every bit of the weights, the config, the architecture, the tokenizer, the payloads' dtype
    and the template.
    """
    scorer, tokenizer = tiny_bi_encoder(), tiny_tokenizer().to_str()
    one_bit = tiny_bi_encoder()
    with torch.no_grad():
        weight = next(iter(one_bit.parameters())).reshape(-1)
        weight[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    lowercase_not = tokenizer.replace('"lowercase":true', '"lowercase":false')
    different = [
        fingerprint_of(scorer),
        fingerprint_of(one_bit),
        fingerprint_of(tiny_bi_encoder(seed=1)),
        fingerprint_of(tiny_bi_encoder(pooling="cls")),
        fingerprint_of(tiny_cross_encoder()),
        fingerprint_of(tiny_bi_encoder(max_tokens=7)),
        fingerprint_of(scorer, lowercase_not),
        fingerprint(scorer, tokenizer, "int8"),
        fingerprint(scorer, tokenizer, "float32"),
    ]

    assert len(set(different)) == len(different)


def test_the_dtype_of_what_computes_is_in_the_fingerprint() -> None:
    """The fingerprint covers the dtype but not the layout of the weights for a CPU."""
    dtypes = torch.float32, torch.bfloat16, torch.float16
    found = [fingerprint_of(as_served(tiny_bi_encoder(), dtype)) for dtype in dtypes]

    assert found[0] == fingerprint_of(tiny_bi_encoder())
    assert len(set(found)) == 3


@pytest.mark.parametrize("text", ["", "a", "a longer text"])
def test_a_key_names_format_fingerprint_and_text(text: str) -> None:
    (key,) = redis_keys(b"\xab" * 16, [digest(text)])

    name, format_name, tag, text_name = key.decode().split(":")
    assert (name, format_name, text_name) == ("bandrank", "r2", digest(text).hex())
    assert tag == "{" + "ab" * 16 + f"{digest(text)[0] % 64:02x}" + "}"


def test_the_slot_of_a_key_depends_on_its_bucket_alone() -> None:
    """A single command can therefore ask for all keys of a bucket."""
    digests = [bytes([bucket, *rest]) for bucket in (0, 7, 64, 71) for rest in ([1] * 15, [2] * 15)]
    slots = [key_slot(key) for key in redis_keys(bytes(16), digests)]

    assert slots[0] == slots[1] == slots[4] == slots[5]
    assert slots[2] == slots[3] == slots[6] == slots[7] != slots[0]

"""Keys of the cache: for a text, for the scorer that encodes it, and for both together in Redis."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b

from bandrank.dtypes import PayloadDtype
from bandrank.engine.cache.codec import VERSION
from bandrank.models.hashing import add_parts, parts_of_weights
from bandrank.models.scorer import Scorer

FINGERPRINT_VERSION = 2  # says what is hashed; version 1 included the query side
BUCKETS = 64  # hash tags: enough to spread entries over a cluster, few enough that a request needs few commands


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return blake2b(text.encode(), digest_size=16).digest()


def cut_digest(text: str, num_tokens: int) -> bytes:
    """16 bytes that stand for the first `num_tokens` token ids of a text, at least 1; never the `digest` of a text."""
    return blake2b(text.encode(), digest_size=16, salt=num_tokens.to_bytes(16, "little")).digest()


def fingerprint(scorer: Scorer, tokenizer: str, payload_dtype: PayloadDtype) -> bytes:
    """16 bytes that stand for everything a candidate's payload depends on, apart from its text.

    Training only a scorer's query side leaves its fingerprint unchanged. The fingerprint covers the dtype of a prepared
    scorer's weights, in which it computes, but not their device.
    tokenizer: the content of its tokenizer.json.
    """
    hasher = blake2b(digest_size=16)
    side = scorer.candidate_side()
    facts = {
        "version": [FINGERPRINT_VERSION, VERSION],
        "architecture": scorer.architecture,
        "config": side.config,
        "candidate_template": asdict(scorer.candidate_template),
        "payload_dtype": payload_dtype,
    }
    texts = json.dumps(facts, sort_keys=True), tokenizer
    add_parts(hasher, [text.encode() for text in texts])
    add_parts(hasher, parts_of_weights(side.weights))
    return hasher.digest()


def redis_keys(fingerprint: bytes, digests: Sequence[bytes]) -> list[bytes]:
    """`bandrank:r2:{<fingerprint><bucket>}:<digest>` in hex; the part in braces decides the slot in a cluster."""
    tag = b"bandrank:r%d:{" % VERSION + fingerprint.hex().encode()
    return [b"%b%02x}:%b" % (tag, digest[0] % BUCKETS, digest.hex().encode()) for digest in digests]

"""`bandrank precompute` stores a corpus in a real Redis, to be found by id, and resumes after an interruption."""

import asyncio
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.accounts import ACCOUNT
from support.models import save_bi_encoder
from support.redis_server import RedisServer
from support.scorers import EncodedLookupScorer, encoded_lookup, lookup
from support.serving import files_of

from bandrank.__main__ import main
from bandrank.commands import precompute
from bandrank.engine.precompute import LINES_AT_ONCE
from bandrank.engine.registry import CallCandidate
from bandrank.errors import BadSetting
from bandrank.models.ragged import Ragged
from bandrank.serving import LoadedScorers, assemble
from bandrank.settings import Settings

WORDS = ("man", "she", "you", "he")
NUM_LINES = 2 * LINES_AT_ONCE + 7


def settings(server: RedisServer, **more: Any) -> Settings:
    return Settings(device="cpu", redis_url=server.url, cache_memory_bytes=0, redis_timeout_s=20.0, **more)


def models(encoded: list[int] | None = None) -> list[LoadedScorers]:
    """A scorer that precomputes and appends the sizes of its batches to `encoded`."""

    def watch(tokens: Ragged) -> None:
        if encoded is not None:
            encoded.append(len(tokens))

    return [files_of(encoded_lookup(watch, man=3.0, she=2.0))]


def records() -> list[dict[str, str]]:
    """A corpus of NUM_LINES texts with one of four titles each and up to 50 words."""
    return [{"_id": str(n), "title": WORDS[n % 4], "text": "no " * (n % 50) + str(n)} for n in range(NUM_LINES)]


def write(path: Path, lines: list[Any]) -> Path:
    """Writes JSON lines to a file, compressed if its name ends in .gz."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


async def best_by_id(server: RedisServer, ids: list[str]) -> tuple[str, int]:
    """Ranks by id on another replica; returns the best id and how many representations that replica had to compute."""
    encoded: list[int] = []
    serving = assemble(models(encoded), settings(server))
    texts, _ = await serving.registry.resolve([CallCandidate(id=name) for name in ids], ACCOUNT)
    ranking = await serving.models.default.rank("who", texts)
    await serving.models.close()
    return ids[ranking.candidates[0].index], sum(encoded)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_corpus_is_ranked_by_id_from_what_was_precomputed(
    server: RedisServer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The title precedes the text, nothing is left to encode, and the command prints its progress and totals."""
    status = precompute(write(tmp_path / name, records()), models(), settings(server))

    output = capsys.readouterr()
    assert status == 0
    assert f"{NUM_LINES} candidates registered; {NUM_LINES} encoded, 0 were in the cache" in output.out
    assert "100%" in output.err
    assert asyncio.run(best_by_id(server, ["1", "3", "4", "2"])) == ("4", 0)


def test_a_second_run_goes_on_where_the_first_one_stopped(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad line stops the first run after two chunks; once it is mended, the second run encodes only the rest."""
    lines: list[Any] = records()
    bad = [*lines[: LINES_AT_ONCE * 2], '{"_id": "x"}', *lines[LINES_AT_ONCE * 2 :]]
    encoded: list[int] = []

    assert precompute(write(tmp_path / "bad.jsonl", bad), models(), settings(server)) == 1
    assert f"line {2 * LINES_AT_ONCE + 1}" in (told := capsys.readouterr().err)
    assert told.endswith("; what is stored is kept, correct the file and run it again\n")
    assert precompute(write(tmp_path / "good.jsonl", lines), models(encoded), settings(server)) == 0
    assert sum(encoded) == NUM_LINES - 2 * LINES_AT_ONCE


def watched(watch: Callable[[Ragged], None]) -> list[LoadedScorers]:
    """A scorer that precomputes after `watch` has seen the tokens."""
    return [files_of(encoded_lookup(watch, man=3.0))]


def test_an_encoder_may_take_longer_for_the_corpus_than_a_request(server: RedisServer, tmp_path: Path) -> None:
    """The corpus takes three times as long, but is encoded in parts, each of which has the time of a request."""
    path = write(tmp_path / "corpus.jsonl", records()[:60])
    slow = watched(lambda tokens: time.sleep(0.05 * len(tokens)))

    assert precompute(path, slow, settings(server, request_timeout_s=1.0)) == 0


def test_what_was_encoded_before_an_encoder_was_too_slow_is_kept(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even texts of the part of the corpus that failed are kept, and the second run encodes only the others."""
    path = write(tmp_path / "corpus.jsonl", records()[:60])
    encoded: list[int] = []

    def hang(tokens: Ragged) -> None:
        if encoded:
            time.sleep(2.0)
        encoded.append(len(tokens))

    assert precompute(path, watched(hang), settings(server, request_timeout_s=1.0)) == 1
    assert "run it again to go on" in capsys.readouterr().err
    first = encoded[0]
    assert precompute(path, models(encoded), settings(server)) == 0
    assert sum(encoded[2:]) == 60 - first


class WideScorer(EncodedLookupScorer):
    """A scorer whose representations are as large as those of long texts: one row of 2**18 numbers each."""

    representation_size = 1 << 18

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        return Ragged(torch.zeros(len(tokens), self.representation_size), np.arange(len(tokens) + 1))


@pytest.mark.parametrize("title", [None, ""])
def test_a_title_may_be_null(server: RedisServer, tmp_path: Path, title: str | None) -> None:
    """Programs write null for a column without a value; the text alone is then registered."""
    path = write(tmp_path / "corpus.jsonl", [{"id": "1", "title": title, "text": "man"}, {"id": "2", "text": "she"}])

    assert precompute(path, models(), settings(server)) == 0
    assert asyncio.run(best_by_id(server, ["2", "1"])) == ("1", 0)


def test_large_representations_wait_for_redis(server: RedisServer, tmp_path: Path) -> None:
    """70 MiB are more than may wait to be written, and are computed faster than Redis takes them: all are stored."""
    path = write(tmp_path / "corpus.jsonl", records()[:70])

    assert precompute(path, [files_of(WideScorer({}))], settings(server, cache_dtype="float32")) == 0
    assert server.do("DBSIZE") == 2 * 70


def test_a_redis_that_goes_away_ends_the_run_with_an_error(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorers = watched(lambda _: server.kill())

    assert precompute(write(tmp_path / "corpus.jsonl", records()), scorers, settings(server)) == 1
    assert "run it again" in capsys.readouterr().err


def test_a_redis_without_room_for_representations_is_told_to_be_full(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Running the command again would not help before Redis has room, so the error names the cause."""

    def fill(_: Ragged) -> None:
        server.do("CONFIG", "SET", "maxmemory", 1)

    assert precompute(write(tmp_path / "corpus.jsonl", records()), watched(fill), settings(server)) == 1
    assert "Redis is full" in capsys.readouterr().err


def test_a_redis_that_is_not_there_is_named_before_anything_is_encoded(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped address must not look like a Redis that stored too little."""
    server.kill()
    encoded: list[int] = []

    assert precompute(write(tmp_path / "corpus.jsonl", records()), models(encoded), settings(server)) == 1
    assert encoded == []
    assert f"{server.url}/0 does not answer: ConnectionError" in capsys.readouterr().err


def test_without_a_scorer_that_precomputes(server: RedisServer, tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", records())
    with pytest.raises(BadSetting, match="fast_model"):
        precompute(path, [files_of(lookup())], settings(server))


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"id": 7, "text": "man"}',
        '{"id": "", "text": "man"}',
        '{"id": "a"}',
        "{",
        "[" * 100_000,
        '{"id": "a", "text": "cut \\ud83d"}',
        '{"id": "\\udc00", "text": "man"}',
        '{"id": "a", "title": "\\ud83d", "text": "man"}',
    ],
    ids=lambda line: line[:40],
)
def test_a_bad_line_is_reported(
    server: RedisServer, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert precompute(write(tmp_path / "corpus.jsonl", ["", line]), models(), settings(server)) == 1
    assert "line 2" in capsys.readouterr().err


def cut_short(packed: bytes) -> bytes:
    return packed[:-100]


def damaged(packed: bytes) -> bytes:
    """A file whose last tenth was overwritten."""
    kept = len(packed) * 9 // 10
    return packed[:kept] + b"\xff" * (len(packed) - kept)


@pytest.mark.parametrize("harm", [cut_short, damaged, lambda _: b"no gzip"], ids=["cut short", "damaged", "no gzip"])
def test_a_file_that_cannot_be_unpacked_is_reported(
    server: RedisServer, tmp_path: Path, harm: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that could be unpacked is stored, and the error takes one line."""
    path = write(
        tmp_path / "corpus.jsonl.gz",
        [{"id": random.Random(n).randbytes(20).hex(), "text": "man"} for n in range(NUM_LINES)],
    )
    packed = path.read_bytes()
    path.write_bytes(harm(packed))

    assert precompute(path, models(), settings(server)) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"bandrank: {path}: it cannot be unpacked to its end: ")
    assert told.endswith("; what is stored is kept, correct the file and run it again")
    if not path.read_bytes().startswith(b"no gzip"):
        assert server.do("DBSIZE") > LINES_AT_ONCE


def test_a_shadow_is_not_loaded(server: RedisServer, tmp_path: Path) -> None:
    """Nothing is precomputed for it, and it need not even be there."""
    path = write(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "man"}])
    model = ["--model", str(save_bi_encoder(tmp_path / "model")), "--device", "cpu", "--redis-url", server.url]

    assert main(["precompute", str(path), *model, "--shadow-model", str(tmp_path / "missing")]) == 0

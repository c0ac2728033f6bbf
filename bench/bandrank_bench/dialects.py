"""What each wire format costs, compared with our own: the same request to a running service, in each format in turn.

Run as `python -m bandrank_bench dialects`. Every candidate is cached. One service has the shipped scorer that
precomputes, and shows what users wait for. The other has a bi-encoder of one small layer, which takes next to no time,
and shows the host's part alone: HTTP, JSON, validation, the query's tokens and the cache.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch
from tokenizers import Tokenizer

from bandrank.models import checkpoint
from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.shipped import FAST, FOLDER
from bandrank_bench import machine
from bandrank_bench.output import bullets, say, table, write_page
from bandrank_bench.service import running_service
from bandrank_bench.workloads import Writer, passage_tokens

NATIVE, WITH_TEXTS = "bandrank", "bandrank, with texts"  # the yardsticks of the others
NUM_CANDIDATES = (100, 1000)
ROUNDS, HOST_ROUNDS = 40, 160  # the host's part is short and varies more
AIM = 1.03  # of our own format's time
TOKENIZER = FOLDER / FAST / "tokenizer.json"
WHOLE, HOST = f"whole requests to {FAST}", "the host's part alone"

GIVE_TEXTS = {WITH_TEXTS, "SGLang", "Weaviate"}

Body = Callable[[str, Sequence[str]], Mapping[str, Any]]


def under(name: str, **more: Any) -> Body:
    """Makes bodies that have the texts under `name`, and `more` fields."""
    return lambda query, texts: {"query": query, name: texts, **more}


FORMATS: dict[str, tuple[str, Body]] = {
    NATIVE: ("/rerank", under("candidates")),
    WITH_TEXTS: ("/rerank", under("candidates", return_documents=True)),
    "Cohere, Jina, vLLM": ("/v2/rerank", under("documents")),
    "Voyage": ("/v1/rerank", under("documents", truncation=True)),
    "Mixedbread": ("/v1/reranking", under("input")),
    "ZeroEntropy": ("/models/rerank", under("documents")),
    "text-embeddings-inference": ("/rerank", under("texts")),
    "infinity": ("/infinity/rerank", under("documents")),
    "SGLang": ("/sglang/v1/rerank", under("documents")),
    "vLLM, scores": ("/score", lambda query, texts: {"text_1": query, "text_2": texts}),
    "NIM": (
        "/v1/ranking",
        lambda query, texts: {"query": {"text": query}, "passages": [{"text": text} for text in texts]},
    ),
    "Weaviate": ("/rerank", under("documents", property="")),
    "Metarank": (
        "/inference/cross/any",
        lambda query, texts: {"input": [{"query": query, "text": text} for text in texts]},
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-dialects.md"))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds with the shipped scorer")
    parser.add_argument("--host-rounds", type=int, default=HOST_ROUNDS)
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_padding()
    writer = Writer(tokenizer)
    measured = {}
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as name:
        folder = Path(name)
        tiny = str(write_tiny(folder / "tiny"))
        for what, model, rounds in ((WHOLE, FAST, options.rounds), (HOST, tiny, options.host_rounds)):
            settings = {"MODEL": model, "DEVICE": "cpu", "DTYPE": "float32"}
            with (
                running_service(settings, folder / "service.log") as service,
                httpx.Client(base_url=service.url, timeout=300, trust_env=False) as client,
            ):
                for count in NUM_CANDIDATES:
                    say(f"{what}, {count} candidates")
                    measured[f"{count} candidates, {what}"] = measure(client, writer, count, rounds)
    write_page(options.out, page(measured))
    return 0


def write_tiny(folder: Path) -> Path:
    """Writes a random bi-encoder of one layer of width 32, with the tokenizer of the shipped scorer."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    encoder = EncoderConfig(tokenizer.get_vocab_size(), 32, 1, 1, 32, 512)
    cls_id, sep_id = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
    scorer = BiEncoder(BiEncoderConfig(encoder=encoder, cls_id=cls_id, sep_id=sep_id))
    checkpoint.save(scorer, folder, tokenizer=TOKENIZER)
    return folder


def measure(client: httpx.Client, writer: Writer, count: int, rounds: int) -> dict[str, list[float]]:
    """Times each format in each round, in seconds. Every round has a new query and order, and the same texts."""
    rng = random.Random(count)
    texts = [writer.write(passage_tokens(rng), rng) for _ in range(count)]
    ask(client, NATIVE, writer.write(10, rng), texts)  # encodes the candidates
    seconds: dict[str, list[float]] = {name: [] for name in FORMATS}
    for _ in range(rounds):
        query = writer.write(10, rng)
        for name in rng.sample([*FORMATS], len(FORMATS)):
            seconds[name].append(ask(client, name, query, texts))
    return seconds


def ask(client: httpx.Client, name: str, query: str, texts: Sequence[str]) -> float:
    """The seconds from the first byte of a request to the last of its answer, without making or parsing JSON."""
    path, body = FORMATS[name]
    content = json.dumps(body(query, texts)).encode()
    start = time.perf_counter()
    client.post(path, content=content, headers={"content-type": "application/json"}).raise_for_status()
    return time.perf_counter() - start


def page(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The page in Markdown. measured: by title, results of `measure`."""
    parts = [
        "# What wire formats cost",
        "How long requests take in each of the wire formats, beside bandrank's own, over a kept connection. One "
        f"service has {FAST} with every candidate cached; the other a bi-encoder so small that nearly all of the time "
        f"is the host's. The aim for whole requests is at most {AIM:.2f} times our own format.\n\n"
        "Each round asks in all formats, in a new order. The ratio is a format's time over our own format's, as the "
        "median of the rounds. Formats whose answers have the texts are compared with our own format with texts.\n\n"
        "Written by `python -m bandrank_bench dialects`.",
        bullets(machine.describe()),
    ]
    for title, seconds in measured.items():
        rows = []
        for name, times in seconds.items():
            own = seconds[WITH_TEXTS if name in GIVE_TEXTS else NATIVE]
            ratio = median(time / ours for time, ours in zip(times, own, strict=True))
            rows.append([name, f"{1000 * median(times):.1f}", f"{1000 * min(times):.1f}", f"{ratio:.3f}"])
        parts += [
            f"## {title}: {len(seconds[NATIVE])} rounds",
            table(["format", "median ms", "fastest ms", "x our own"], rows),
        ]
    return "\n\n".join(parts) + "\n"

"""What the soak test asks, and the scores it must get."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import BertConfig, BertForSequenceClassification

from bandrank.serving import assemble, load_models
from bandrank.settings import Settings

SYLLABLES = ("ba", "ko", "ti", "re", "su", "mo", "ne", "la", "fi", "gu", "da", "po", "si", "ve", "wu", "za")
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]


@dataclass(frozen=True)
class Pool:
    """Queries, texts of 1 to 300 words, and raw_scores[query][text] as the engine gives them in this process."""

    queries: list[str]
    texts: list[str]
    raw_scores: list[list[float]]

    @classmethod
    def scored_by(cls, model: str) -> Self:
        """A random pool, scored one query at a time."""
        rng = random.Random(0)
        queries = [_sentence(rng, rng.randint(1, 12)) for _ in range(12)]
        texts = [_sentence(rng, rng.randint(*rng.choice([(1, 5), (10, 60), (100, 300)]))) for _ in range(120)]
        return cls(queries, texts, asyncio.run(_score(model, queries, texts)))


@dataclass(frozen=True)
class Call:
    """One request: its body, and which query and texts of the pool it is made of."""

    query: int
    texts: list[int]
    body: dict[str, Any]


def draw(pool: Pool, rng: random.Random, *, num_candidates: int) -> Call:
    """A random request; a text may be drawn twice, so that ties occur."""
    query = rng.randrange(len(pool.queries))
    texts = rng.choices(range(len(pool.texts)), k=num_candidates)
    with_ids = rng.random() < 0.5
    body: dict[str, Any] = {
        "query": pool.queries[query],
        rng.choice(["candidates", "documents"]): [
            {"id": f"c{position}", "text": pool.texts[text]} if with_ids else pool.texts[text]
            for position, text in enumerate(texts)
        ],
    }
    if rng.random() < 0.3:
        body["top_n"] = rng.randint(1, len(texts))
    for option in ("raw_scores", "return_documents"):
        if rng.random() < 0.2:
            body[option] = True
    return Call(query, texts, body)


def tiny_cross_encoder(folder: Path) -> Path:
    """A random two-layer sparse cross-encoder in Hugging Face's format, whose scores lie well apart from each other."""
    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    groups = ("cls", "query", "doc")
    sparse: dict[str, Any] = {f"{a}_{b}_attention": a != "query" for a in groups for b in groups if a != b}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.3,
        **{"num_labels": 1, "attention_window_size": 4} | sparse,
    )
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=0.5)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")
    return folder


async def _score(model: str, queries: Sequence[str], texts: Sequence[str]) -> list[list[float]]:
    settings = Settings(model=model)
    serving = assemble(load_models(settings), settings)
    scores = []
    for query in queries:
        ranking = await serving.models.default.rank(query, texts)
        by_index = {candidate.index: candidate.score for candidate in ranking.candidates}
        scores.append([by_index[index] for index in range(len(texts))])
    await serving.models.close()
    return scores


def _sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))

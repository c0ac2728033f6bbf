"""Digests of what work depends on, by which it is found again: a run that goes on uses nothing made of others."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice

import torch

from bandrank.models.loading import LoadedModel, load_model
from bandrank_training.collection import Collection


def digest(*parts: str | bytes) -> str:
    """24 characters that stand for the parts."""
    hasher = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        hasher.update(len(content).to_bytes(8, "little"))  # else ("ab", "c") would hash like ("a", "bc")
        hasher.update(content)
    return hasher.hexdigest()[:24]


def of_model(model: LoadedModel) -> str:
    """The digest of a model's weights, settings and tokenizer, and of the scorer to which it adds its own scores."""
    scorer = model.scorer
    facts = {"architecture": scorer.architecture, "config": asdict(scorer.config), "exact": sorted(scorer.exact_layers)}
    parts: list[str | bytes] = [json.dumps(facts, sort_keys=True, default=str), model.tokenizer.to_str()]
    for name, tensor in sorted(scorer.state_dict().items()):
        parts.append(f"{name} {tensor.dtype} {list(tensor.shape)}")
        parts.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if model.fusion is not None:
        parts += [str(model.fusion), of_model(load_model(model.fusion.scorer))]
    return digest(*parts)


def of_documents(collection: Collection, most: int | None = None) -> str:
    """The digest of a collection's first documents, or of all, and of the pages they are on. Raises BadCollection."""
    documents = (f"{name}\0{text}" for name, text in islice(collection.documents(), most))
    return digest(of_texts(documents), json.dumps(collection.pages(), sort_keys=True))


def of_judgements(collection: Collection, split: str) -> str:
    """The digest of a split's judgements and of all queries. Raises BadCollection."""
    return digest(json.dumps([collection.qrels(split), collection.queries()], sort_keys=True))


def of_texts(texts: Iterable[str]) -> str:
    """The digest of texts in their order, without holding them."""
    hasher = hashlib.sha256()
    for text in texts:
        hasher.update(digest(text).encode())
    return hasher.hexdigest()[:24]

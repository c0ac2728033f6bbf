"""Digests of inputs, by which a resumed run finds earlier work and recognises work made from other inputs."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain, islice

from bandrank.models.hashing import Part, add_parts, parts_of_weights
from bandrank.models.loading import LoadedModel
from bandrank_training.collection import Collection
from bandrank_training.start import load_fast


def digest(parts: Iterable[str | Part]) -> str:
    """Hashes the parts in order to 24 characters, without holding all of them in memory."""
    hasher = hashlib.sha256()
    add_parts(hasher, (part.encode() if isinstance(part, str) else part for part in parts))
    return hasher.hexdigest()[:24]


def of_model(model: LoadedModel) -> str:
    """The digest of a model's weights, settings and tokenizer, and of the scorer to whose scores it adds its own."""
    scorer, fast = model.scorer, load_fast(model)
    facts = {"architecture": scorer.architecture, "config": asdict(scorer.config), "exact": sorted(scorer.exact_layers)}
    texts = [json.dumps(facts, sort_keys=True, default=str), model.tokenizer.to_str()]
    texts += [] if model.query_tokenizer is None else [model.query_tokenizer.to_str()]
    texts += [] if fast is None else [str(model.fusion), of_model(fast)]
    return digest(chain(texts, parts_of_weights(scorer.state_dict())))


def of_documents(collection: Collection, most: int | None = None) -> str:
    """The digest of a collection's first `most` documents, or of all, and of their pages. Raises BadCollection."""
    documents = chain.from_iterable(islice(collection.documents(), most))
    return digest(chain(documents, [json.dumps(collection.pages(), sort_keys=True)]))


def of_judgements(collection: Collection, split: str) -> str:
    """The digest of a split's judgements and of all queries. Raises BadCollection."""
    return digest([json.dumps([collection.qrels(split), collection.queries()], sort_keys=True)])

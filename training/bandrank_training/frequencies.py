"""Counts document frequencies of word pieces in a collection, for the weights that ship with lexical evidence."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from bandrank.models.ids import Ids, unpack_ids
from bandrank.models.texts import TextEncoder
from bandrank_training.errors import BadInput

TEXTS = 1024  # tokenised at a time


def rarity(texts: Iterable[str], encoder: TextEncoder) -> tuple[Tensor, float]:
    """Returns Lucene's inverse document frequency of each word piece, (vocab_size,), 0 for special tokens; and the mean
    number of word pieces per text. Raises BadInput if there is no text.
    """
    counts = np.zeros(encoder.scorer.config.encoder.vocab_size, np.int64)
    num_texts = total = 0
    for pieces in _pieces(texts, encoder):
        counts[np.unique(pieces)] += 1
        num_texts += 1
        total += len(pieces)
    if not num_texts:
        raise BadInput("there is no document to count word pieces in")
    idf = np.log1p((num_texts - counts + 0.5) / (counts + 0.5))
    idf[_special(encoder)] = 0
    return torch.from_numpy(idf.astype(np.float32)), max(1.0, total / num_texts)


def _pieces(texts: Iterable[str], encoder: TextEncoder) -> Iterator[Ids]:
    rest = iter(texts)
    while some := list(islice(rest, TEXTS)):
        yield from map(unpack_ids, encoder.pieces(some))


def _special(encoder: TextEncoder) -> list[int]:
    templates = encoder.scorer.query_template, encoder.scorer.candidate_template
    ids = {token for each in templates for token in (*each.prefix, *each.suffix, each.sentence_token)}
    ids |= {encoder.tokenizer.token_to_id("[UNK]"), *encoder.tokenizer.get_added_tokens_decoder()}
    return sorted(token for token in ids if token is not None)

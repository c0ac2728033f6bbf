"""Exhaustive search over a bi-encoder's vectors, which are kept in files so that a killed run can resume."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from bandrank.models.checkpoint import write_whole
from bandrank.models.ids import RaggedIds
from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank_training.candidates import best_of
from bandrank_training.contents import digest, of_model
from bandrank_training.errors import BadInput
from bandrank_training.placement import Placement

CHUNK = 256  # texts per file of vectors
BATCH = 32  # texts encoded, and queries compared, at a time

Vectors = npt.NDArray[np.float32]
Read = Callable[[TextEncoder, Sequence[str]], RaggedIds]


def read_candidates(encoder: TextEncoder, texts: Sequence[str]) -> RaggedIds:
    """Tokenises texts as candidates of a bi-encoder."""
    ids, _ = encoder.candidates(encoder.pieces(texts), query_tokens=0)
    return ids


def read_queries(encoder: TextEncoder, texts: Sequence[str]) -> RaggedIds:
    """Tokenises texts as queries of a bi-encoder."""
    return RaggedIds.of([encoder.query(text)[0] for text in texts])


class DenseIndex:
    """The vectors of texts, by a bi-encoder with cosine similarity."""

    def __init__(
        self,
        model: LoadedModel,
        texts: Sequence[str],
        placement: Placement,
        *,
        max_tokens: int | None = None,
        folder: Path | None = None,
    ) -> None:
        """model: is left unchanged.  max_tokens: the limit of a text.  folder: for files of vectors.

        Raises BadInput for any other scorer, and for a dtype that cannot be computed.
        """
        scorer = model.scorer
        if not scorer.embeds or scorer.encodes_queries_apart or scorer.config.similarity != "cosine":
            raise BadInput(f"{model.name}: expected a bi-encoder of one encoder that compares by the cosine")
        self._size = scorer.representation_size
        self._folder, self._name = folder, f"{of_model(model) if folder else ''} {max_tokens} {placement.dtype}"
        try:
            self._scorer = prepare(deepcopy(model.scorer), device=placement.device, dtype=placement.dtype)
        except ValueError as error:  # int8 is not available
            raise BadInput(str(error)) from error
        self._encoder = model.texts(max_tokens)
        self.vectors = self._encode(texts, "texts", read_candidates)

    def search(self, queries: Sequence[str], depth: int) -> Iterator[tuple[npt.NDArray[np.int64], Vectors]]:
        """Yields, for each query, the indices of the `depth` nearest texts, nearest first (of equals, the first), and
        all texts' cosines.
        """
        vectors = self._encode(queries, "queries", read_queries)
        for begin in range(0, len(vectors), BATCH):  # in batches, as each product reads all vectors
            for cosines in vectors[begin : begin + BATCH] @ self.vectors.T:
                yield best_of(cosines, depth), cosines

    def _encode(self, texts: Sequence[str], what: str, read: Read) -> Vectors:
        chunks = [texts[begin : begin + CHUNK] for begin in range(0, len(texts), CHUNK)]
        progress = tqdm(chunks, desc=f"vectors of {what}", unit="chunk", disable=len(chunks) == 1)
        return np.concatenate([self._chunk(chunk, what, read) for chunk in progress])

    def _chunk(self, texts: Sequence[str], what: str, read: Read) -> Vectors:
        """The vectors of a chunk, (n, hidden_size), read from its file if there is one."""
        if self._folder is None:
            return self._vectors(read(self._encoder, texts))
        path = self._folder / f"{digest([self._name, what, *texts])}.npy"
        if path.is_file():
            try:
                kept: Vectors = np.load(path)
            except (EOFError, ValueError) as error:
                raise BadInput(f"{path}: {error}; delete this file, and run the command again") from error
            return kept
        vectors = self._vectors(read(self._encoder, texts))
        self._folder.mkdir(parents=True, exist_ok=True)
        file = BytesIO()  # given a file, numpy overlooks that the disk is full
        np.save(file, vectors)
        write_whole(path, file.getvalue())
        return vectors

    def _vectors(self, ids: RaggedIds) -> Vectors:
        """Encodes texts or queries: a bi-encoder has one encoder for both."""
        vectors = np.empty((len(ids), self._size), np.float32)
        for begin in range(0, len(ids), BATCH):
            tokens = Ragged.from_ids([ids[begin : begin + BATCH]])
            with torch.inference_mode():
                encoded = self._scorer.encode_candidates(tokens)
            vectors[begin : begin + BATCH] = encoded.values.float().cpu().numpy()
        return vectors

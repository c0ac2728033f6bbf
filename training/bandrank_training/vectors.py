"""The loss by which a bi-encoder learns another's vectors (LEAF: Vujanic & Rueckstieß 2025, arXiv 2509.12539)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bandrank.models.architectures import BiEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import LoadedModel
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_training.dense import Read, read_candidates, read_queries
from bandrank_training.errors import BadRecipe


class VectorLoss:
    """1 minus the cosine of the student's and the teacher's vectors: the mean over queries plus that over candidates.

    The teacher has its own tokenizer and prompts, and reads each text once: its vectors are kept in memory. A resumed
    run therefore matches an uninterrupted one only up to rounding, because texts are encoded in other batches.
    """

    def __init__(self, teacher: LoadedModel, max_candidate_tokens: int) -> None:
        """max_candidate_tokens: of a candidate. Raises BadRecipe for a teacher that is not a bi-encoder."""
        if not teacher.scorer.embeds or teacher.scorer.encodes_queries_apart:
            raise BadRecipe(f"vectors are learnt from a bi-encoder of one encoder, which {teacher.name} is not")
        self._scorer = teacher.scorer
        self._encoder = teacher.texts(max_candidate_tokens)
        self._of_queries: dict[str, Tensor] = {}
        self._of_candidates: dict[str, Tensor] = {}

    def __call__(self, student: Scorer, batch: ScoreBatch, queries: Sequence[str], candidates: Sequence[str]) -> Tensor:
        """Raises BadRecipe for a student that is not a bi-encoder, or whose vectors have another size."""
        size = self._scorer.representation_size
        if not isinstance(student, BiEncoder) or student.representation_size != size:
            raise BadRecipe(f"this teacher is for a bi-encoder whose vectors have {size} numbers; see `align`")
        ours = student.encode_queries(batch.queries), student.encode_candidates(batch.candidates)
        theirs = (
            self._vectors(self._of_queries, queries, read_queries),
            self._vectors(self._of_candidates, candidates, read_candidates),
        )
        return torch.stack(
            [1 - cosine_similarity(one.values.float(), other).mean() for one, other in zip(ours, theirs, strict=True)]
        ).sum()

    def _vectors(self, known: dict[str, Tensor], texts: Sequence[str], read: Read) -> Tensor:
        """The teacher's vectors of texts, (n, size); it has one encoder for both kinds. known: vectors made so far."""
        if unknown := [text for text in dict.fromkeys(texts) if text not in known]:
            tokens = Ragged.from_ids([read(self._encoder, unknown)])
            with torch.no_grad():
                vectors = self._scorer.encode_candidates(tokens).values.float()
            known.update(zip(unknown, vectors, strict=True))
        return torch.stack([known[text] for text in texts])

"""The loss by which a bi-encoder learns another's vectors (LEAF: Vujanic & Rueckstieß 2025, arXiv 2509.12539)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bandrank.models.architectures import BiEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import RaggedIds
from bandrank.models.loading import LoadedModel
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.texts import TextEncoder
from bandrank_training.errors import BadRecipe


class VectorLoss:
    """1 less the cosine of a text's vector and the teacher's: the mean over queries, plus that over candidates.

    The teacher reads a text by its own tokenizer, with its own prompts, and once: its vectors are kept in memory.
    """

    def __init__(self, teacher: LoadedModel, max_candidate_tokens: int) -> None:
        """max_candidate_tokens: token ids read of a candidate. Raises BadRecipe for a teacher that is no bi-encoder."""
        if not isinstance(teacher.scorer, BiEncoder):
            raise BadRecipe(f"vectors are learnt from a bi-encoder; {teacher.name} is a {teacher.scorer.architecture}")
        self._scorer = teacher.scorer
        self._encoder = TextEncoder(teacher.tokenizer, teacher.scorer, max_candidate_tokens)
        self._of_queries: dict[str, Tensor] = {}
        self._of_candidates: dict[str, Tensor] = {}

    def __call__(self, student: Scorer, batch: ScoreBatch, queries: Sequence[str], candidates: Sequence[str]) -> Tensor:
        """Raises BadRecipe for a student that is no bi-encoder, or whose vectors have another size."""
        size = self._scorer.representation_size
        if not isinstance(student, BiEncoder) or student.representation_size != size:
            raise BadRecipe(f"this teacher is for a bi-encoder whose vectors have {size} numbers; see `align`")
        ours = student.encode_queries(batch.queries), student.encode_candidates(batch.candidates)
        theirs = self._queries(queries), self._candidates(candidates)
        return torch.stack(
            [1 - cosine_similarity(one.values.float(), other).mean() for one, other in zip(ours, theirs, strict=True)]
        ).sum()

    def _queries(self, texts: Sequence[str]) -> Tensor:
        unknown = [text for text in dict.fromkeys(texts) if text not in self._of_queries]
        ids = RaggedIds.of([self._encoder.query(text)[0] for text in unknown])
        self._of_queries.update(zip(unknown, self._vectors(ids), strict=True))
        return torch.stack([self._of_queries[text] for text in texts])

    def _candidates(self, texts: Sequence[str]) -> Tensor:
        unknown = [text for text in dict.fromkeys(texts) if text not in self._of_candidates]
        ids, _ = self._encoder.candidates(self._encoder.pieces(unknown), query_tokens=0)
        self._of_candidates.update(zip(unknown, self._vectors(ids), strict=True))
        return torch.stack([self._of_candidates[text] for text in texts])

    def _vectors(self, ids: RaggedIds) -> Sequence[Tensor]:
        """A bi-encoder reads queries and candidates with one encoder."""
        if not len(ids):
            return []
        with torch.no_grad():
            tokens = Ragged.from_ids([ids]).to(next(self._scorer.parameters()).device)
            return self._scorer.encode_candidates(tokens).values.float().unbind()

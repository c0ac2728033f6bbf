"""The loss by which a bi-encoder learns another's vectors, against vectors of one text at a time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.scorers import loaded
from support.tokenizer import tiny_tokenizer
from support.training import saved, train
from torch import Tensor

from bandrank.models.architectures import BiEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank.models.wording import Wording
from bandrank_kernels.arrays import offsets
from bandrank_training.errors import BadRecipe
from bandrank_training.vectors import VectorLoss

QUERIES, CANDIDATES = ["who is he", "the man"], ["he is the man", "they were", "he is the man"]


def batch_of(scorer: BiEncoder) -> ScoreBatch:
    """Returns a batch of the texts, with two candidates for the first query and one for the second."""
    encoder = TextEncoder(tiny_tokenizer(), scorer)
    candidates, _ = encoder.candidates(encoder.pieces(CANDIDATES), query_tokens=0)
    queries = Ragged.from_token_ids([encoder.query(text)[0] for text in QUERIES])
    return ScoreBatch(queries, Ragged.from_ids([candidates]), offsets([2, 1]))


def vector(scorer: BiEncoder, text: str, *, query: bool = False, most: int = 100) -> Tensor:
    """Returns the vector of one text that is encoded by itself."""
    encoder = TextEncoder(tiny_tokenizer(), scorer, most)
    if query:
        ids = encoder.query(text)[0].tolist()
    else:
        ids = encoder.candidates(encoder.pieces([text]), query_tokens=0)[0].values.tolist()
    return scorer.encode_candidates(Ragged.from_token_ids([ids])).values[0]


@pytest.mark.parametrize("most", [100, 4])
def test_the_loss_is_one_less_the_cosine(most: int) -> None:
    """The means over queries and candidates are added; the teacher has a prompt, and reads at most `most` tokens."""
    student, teacher = tiny_bi_encoder(), tiny_bi_encoder(seed=1, pooling="cls")
    teacher = BiEncoder(replace(teacher.config, query_wording=Wording("was {text}"))).eval()
    loss = VectorLoss(loaded(teacher), most)
    expected = torch.zeros(())
    for texts, query in ((QUERIES, True), (CANDIDATES, False)):
        cosines = [vector(student, text, query=query) @ vector(teacher, text, query=query, most=most) for text in texts]
        expected = expected + 1 - torch.stack(cosines).mean()

    for _ in range(2):  # the second time by vectors that are known
        torch.testing.assert_close(loss(student, batch_of(student), QUERIES, CANDIDATES), expected)


def test_a_text_is_read_once_by_the_teacher() -> None:
    """A text that comes again, in the same batch or in another, is not encoded again; the teacher gets no gradient."""
    student, teacher = tiny_bi_encoder(), tiny_bi_encoder(seed=1)
    student.requires_grad_(requires_grad=True)
    teacher.requires_grad_(requires_grad=True)
    seen: list[int] = []
    encode = teacher.encode_candidates

    def counted(tokens: Ragged) -> Ragged:
        seen.append(len(tokens))
        return encode(tokens)

    teacher.encode_candidates = counted  # type: ignore[method-assign]  # a hook
    loss = VectorLoss(loaded(teacher), 100)
    for _ in range(2):
        loss(student, batch_of(student), QUERIES, CANDIDATES).backward()  # type: ignore[no-untyped-call]  # torch's

    assert seen == [2, 2]
    assert all(weight.grad is None for weight in teacher.parameters())
    assert student.encoder.layers[0].qkv.weight.grad.abs().sum() > 0


def test_teacher_and_student_must_be_bi_encoders_of_the_same_size() -> None:
    """A teacher has one encoder."""
    for teacher in (tiny_cross_encoder(), tiny_bi_encoder(separate_towers=True)):
        with pytest.raises(BadRecipe, match="a bi-encoder of one encoder, which tiny is not"):
            VectorLoss(loaded(teacher), 100)
    loss, student = VectorLoss(loaded(tiny_bi_encoder()), 100), tiny_cross_encoder()
    with pytest.raises(BadRecipe, match=r"vectors have \d+ numbers; see `align`"):
        loss(student, batch_of(tiny_bi_encoder()), QUERIES, CANDIDATES)


def test_training_brings_vectors_near(toy: Path, tmp_path: Path) -> None:
    saved(tmp_path / "teacher", tiny_bi_encoder(seed=9))
    loss = {"name": "vectors", "teacher": str(tmp_path / "teacher")}
    trainer = train(
        toy,
        tmp_path / "out",
        start="bi_encoder",
        losses=[],
        model_losses=[loss],
        optimiser={"steps": 30, "learning_rate": 3e-3, "warmup_steps": 0},
    )

    learnt = [entry["vectors"] for entry in trainer.progress.log if "vectors" in entry]
    assert len(learnt) == 30
    assert min(learnt[-3:]) < 0.5 * learnt[0]


def test_a_cross_encoder_with_a_window_cannot_be_looked_into(toy: Path, tmp_path: Path) -> None:
    """A VIRT or a Deformer learns from the layers of a teacher with full attention."""
    loss = {"name": "virt_maps", "teacher": str(toy / "cross_encoder")}
    with pytest.raises(BadRecipe, match="takes a cross-encoder with full attention"):
        train(toy, tmp_path / "out", model_losses=[loss])

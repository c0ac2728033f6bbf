"""Loads a scorer and its tokenizer by a model's name, in any supported format."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bandrank.dtypes import DtypeName
from bandrank.models import checkpoint, hf
from bandrank.models.architectures.bi_encoder import BiEncoder, Similarity
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.fusion import Fusion
from bandrank.models.hf.files import find_folder, load_tokenizer, transformer_folder
from bandrank.models.scorer import Scorer
from bandrank.models.shipped import shipped
from bandrank.models.texts import TextEncoder


@dataclass(frozen=True)
class LoadedModel:
    """A scorer, its tokenizer, and the folder of both.

    query_tokenizer: reads queries, if that is another.  fusion: how its scores are combined with a fast scorer's, if it
    was trained for that.  fit: the dtypes besides float32 in which it was measured to rank as well (`bandrank_training
    quantise`).
    """

    name: str
    folder: Path
    scorer: Scorer
    tokenizer: Tokenizer
    query_tokenizer: Tokenizer | None = None
    fusion: Fusion | None = None
    fit: tuple[DtypeName, ...] = ()

    def texts(self, max_candidate_tokens: int | None = None) -> TextEncoder:
        """What turns texts into token ids."""
        return TextEncoder(self.tokenizer, self.scorer, max_candidate_tokens, self.query_tokenizer)


def load_model(
    model: str, revision: str | None = None, *, similarity: Similarity | None = None, size: int | None = None
) -> LoadedModel:
    """Loads a shipped checkpoint by its name, or a folder or hub id in bandrank's format or one that models/hf reads.

    similarity: how a sentence-transformers bi-encoder compares vectors, and size: how many numbers of a bi-encoder's
    vectors are kept at most, whatever its folder says.
    Raises BadCheckpoint.
    """
    folder = shipped(model) or find_folder(model, revision)
    if checkpoint.is_checkpoint(folder):
        fusion = checkpoint.load_fusion(folder)
        fit = checkpoint.load_precision(folder).fit
        tokenizer = load_tokenizer(checkpoint.tokenizer_folder(folder))
        scorer = checkpoint.load(folder)
        if size is not None and isinstance(scorer, BiEncoder):
            scorer.cut(size)
        loaded = LoadedModel(model, folder, scorer, tokenizer, fusion=fusion, fit=fit)
    else:
        scorer = hf.load(folder, name=model, similarity=similarity, size=size)
        root, folder = folder, transformer_folder(folder)
        tokenizer = load_tokenizer(folder, strip=scorer.strips_texts)
        apart = load_tokenizer(transformer_folder(root, "query")) if len(scorer.sides) > 1 else None
        loaded = LoadedModel(model, folder, scorer, tokenizer, query_tokenizer=apart)
    _require_fitting(loaded)
    return loaded


def _require_fitting(model: LoadedModel) -> None:
    """Raises BadCheckpoint if the tokenizer has tokens without an embedding. A text with such a token could not be
    scored; on a GPU it would end the process, because an index out of range leaves the device unusable.
    """
    tokenizers = model.tokenizer, model.query_tokenizer or model.tokenizer
    for side, tokenizer in zip(model.scorer.sides, tokenizers, strict=False):
        rows = side.config.encoder.vocab_size
        last = max([tokenizer.get_vocab_size(with_added_tokens=False) - 1, *tokenizer.get_added_tokens_decoder()])
        if last >= rows:
            raise BadCheckpoint(
                f"{model.folder}: the id of {tokenizer.id_to_token(last)!r} of the tokenizer is {last}, but the "
                f"weights embed {rows} tokens; the tokenizer is another model's, or tokens were added to it alone"
            )

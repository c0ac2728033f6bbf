"""A model folder in Hugging Face's format, as its family describes it and its role reads it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bandrank.models.checkpoint import AnyScorer, BadCheckpoint, assemble, read_object
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights, load_tokenizer
from bandrank.models.hf.frame import Frame
from bandrank.models.scorer import Scorer

SUPPORTED = "`bandrank models` lists the families that load, with examples"


def head_names(**layers: str) -> dict[str, str]:
    """The saved names of a head's tensors by ours, from those of its layers."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in layers.items() for part in ("weight", "bias")}


@dataclass(frozen=True)
class Family:
    """How one family of encoders is saved.

    prefixes: the possible prefixes of the encoder's tensors in a model that also has a head.
    tokens: the usual spellings of "cls", "sep" and "mask"; the first two are for tokenizers without a template, and are
    missing if a text may have a token on one side only.
    read_config: reads the encoder's config from config.json and the weights, which it may change. Raises ValueError for
    unsupported settings.
    encoder_weights: the encoder's tensors under our names, which start with `encoder.`. Raises KeyError for a missing
    tensor.
    head: the saved names of a cross-encoder's head by ours; one of ours is "classifier.weight".
    query_separators: the number of separators between a query and a candidate, if the tokenizer has no template.
    read_reranker: reads a re-ranker that is no `CrossEncoder`.
    projection: the saved name of a matrix with which the family multiplies the last state of each token.
    mlm_head: the saved names of the layers of a masked language model's head: dense layer, norm, and decoder.
    """

    prefixes: tuple[str, ...]
    tokens: Mapping[str, str]
    read_config: Callable[[dict[str, Any], Weights], EncoderConfig]
    encoder_weights: Callable[[Weights, EncoderConfig], Weights]
    head: Mapping[str, str]
    query_separators: int = 1
    read_reranker: Callable[["Model"], Scorer] | None = None
    projection: str = ""
    mlm_head: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class Model:
    """The content of a folder.

    root: the folder that was asked for; in it a Router may keep `folder`, where config.json, weights and tokenizer are.
    settings: the keys of config.json.  weights: tensors by their saved names, without the family's prefix.
    headless: whether no name had a prefix, as in a model that was saved without a head.  name: the name by which it was
    asked for.  similarity: how a bi-encoder compares vectors.  size: how many of their numbers it keeps at most; None
    leaves either to its folder.
    """

    root: Path
    folder: Path
    family: Family
    settings: dict[str, Any]
    weights: Weights
    encoder: EncoderConfig
    headless: bool = False
    name: str = ""
    similarity: Literal["cosine", "dot"] | None = None
    size: int | None = None

    @property
    def encoder_weights(self) -> Weights:
        """The encoder's tensors under our names. Raises KeyError for a missing tensor."""
        return self.family.encoder_weights(self.weights, self.encoder)

    @property
    def head_weights(self) -> Weights:
        """The tensors of a cross-encoder's head under our names, which start with `head.`, in float32. Raises
        BadCheckpoint unless it has one output, and KeyError for a missing tensor.
        """
        names = self.family.head
        if not names:
            kind = self.settings["model_type"]
            raise self.refuse(f"a {kind} that re-ranks is not supported; embedding models have a modules.json")
        classifier = self.weights.get(names["classifier.weight"])
        if (outputs := "none" if classifier is None else len(classifier)) != 1:
            raise self.refuse(f"a re-ranker needs a classifier with one output, but this model has {outputs}")
        return {f"head.{ours}": self.weights[theirs].float() for ours, theirs in names.items()}

    @property
    def mlm_head_weights(self) -> Weights:
        """The tensors of a masked language model's head under our names: `head.dense` and `head.norm` in float32, and
        `decoder`. Raises BadCheckpoint if the family has no such head that is supported, and KeyError for a missing
        tensor.
        """
        if self.family.mlm_head is None:
            raise self.refuse(f"a {self.settings['model_type']} as a masked language model is not supported")
        dense, norm, decoder = self.family.mlm_head
        names = head_names(dense=dense, norm=norm)
        weights = {f"head.{ours}": self.weights[theirs].float() for ours, theirs in names.items()}
        # Of a decoder without a matrix of its own it is that of words, and of one without a bias it is the head's.
        words = self.encoder_weights["encoder.embeddings.word.weight"]
        bias = f"{decoder}.bias" if f"{decoder}.bias" in self.weights else f"{decoder.rpartition('.')[0]}.bias"
        matrix = self.weights.get(f"{decoder}.weight", words)
        # A copy, since a file of weights holds no tensor that is part of another.
        return weights | {"decoder.weight": matrix.clone(), "decoder.bias": self.weights[bias]}

    def assemble(self, architecture: type[AnyScorer], config: Any, others: Weights) -> AnyScorer:
        """The scorer of a config, with the encoder's tensors and others. Raises BadCheckpoint, and KeyError for a
        missing tensor.
        """
        return assemble(architecture, config, self.encoder_weights | others, source=str(self.folder))

    def refuse(self, reason: str) -> BadCheckpoint:
        """An error that names the folder, the reason, and what is supported."""
        return BadCheckpoint(f"{self.folder}: {reason}; {SUPPORTED}")

    def ids(self, *, bare: bool = False) -> dict[str, Any]:
        """The ids of the tokens around a text, as fields of a config: `cls_id` and `sep_id`.

        Raises BadCheckpoint, also if no token precedes a text, unless it may be `bare`.
        """
        if (frame := self.frame) is None:
            return {f"{name}_id": self.token_id(self.family.tokens[name]) for name in ("cls", "sep")}
        if frame.cls_id is None and not bare:
            raise self.refuse("the tokenizer puts no token before a text")
        return {"cls_id": frame.cls_id, "sep_id": frame.sep_id}

    @property
    def mask_id(self) -> int:
        """The id of [MASK], in the tokenizer's own spelling or in the family's. Raises BadCheckpoint."""
        named = read_object(self.folder / "tokenizer_config.json", optional=True).get("mask_token")
        spelling = named.get("content") if isinstance(named, dict) else named
        return self.token_id(str(spelling or self.family.tokens.get("mask", "[MASK]")))

    @property
    def query_separators(self) -> int:
        """The number of separators between a query and a candidate. Raises ValueError, as `frame`."""
        return self.family.query_separators if self.frame is None else self.frame.query_separators

    @cached_property
    def frame(self) -> Frame | None:
        """The tokens that the tokenizer puts around texts; None if it puts none, and the family spells them. Raises
        ValueError as `Frame.of`.
        """
        frame = Frame.of(self.folder)
        if "cls" not in self.family.tokens or len(frame.text) == 2:
            return frame
        if frame.text:
            raise frame.unsupported
        return None

    def token_id(self, token: str) -> int:
        """The id of a token. Raises BadCheckpoint if the tokenizer lacks it."""
        if (token_id := self._vocabulary(token)) is None:
            raise self.refuse(f"the tokenizer has no {token}")
        return token_id

    def ids_of_words(self, words: Iterable[str]) -> tuple[int, ...]:
        """The ids of those words that are tokens, in ascending order. Raises BadCheckpoint."""
        ids = set(map(self._vocabulary, words))
        return tuple(sorted(each for each in ids if each is not None))

    @cached_property
    def _vocabulary(self) -> Callable[[str], int | None]:
        return load_tokenizer(self.folder).token_to_id

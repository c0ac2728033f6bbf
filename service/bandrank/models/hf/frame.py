"""The special tokens that a model's tokenizer puts around texts, whatever the family of the encoder:
intfloat/multilingual-e5-small is a BERT that reads XLM-RoBERTa's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import load_tokenizer

# Tokenizer classes that give no token types unless their files say so: TokenizersBackend is what transformers 5 makes
# of a tokenizer without a class of its own. Others give types, or have one type in their templates. So does
# PreTrainedTokenizerFast, as transformers 4 called such a tokenizer: models were trained with its types, although
# transformers 5 reads the same folder without them.
UNTYPED = {"DistilBertTokenizer", "DistilBertTokenizerFast", "TokenizersBackend"}
# Classes that in transformers 4 heeded add_eos_token, with which models were trained. Version 5 follows tokenizer.json
# alone, to the harm of intfloat/e5-mistral-7b-instruct (https://github.com/embeddings-benchmark/mteb/pull/5237).
ENDING = {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"}


@dataclass(frozen=True)
class Frame:
    """The tokens `cls_id` before a text and `sep_id` behind it, each of which may be missing.

    text, pair: the tokens around one text, and around two.  token_types: whether tokens of the second text have another
    type than the first's.
    """

    cls_id: int | None
    sep_id: int | None
    text: Sequence[int]
    pair: Sequence[int]
    token_types: bool

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The frame in the template of a folder's tokenizer.

        Raises BadCheckpoint, and ValueError for a template of another form.
        """
        tokenizer = load_tokenizer(folder)
        text, pair = tokenizer.encode("a"), tokenizer.encode("", "")
        added = text.special_tokens_mask
        around = [token for token, is_added in zip(text.ids, added, strict=True) if is_added]
        cls_id, sep_id = (text.ids[place] if added[place] else None for place in (0, -1))
        settings = read_object(folder / "tokenizer_config.json", optional=True)
        inputs = settings.get("model_input_names")
        typed = "token_type_ids" in inputs if inputs else settings.get("tokenizer_class") not in UNTYPED
        frame = cls(cls_id, sep_id, around, pair.ids, typed and pair.type_ids[-1:] == [1])
        if len(around) > added[0] + added[-1]:
            raise frame.unsupported
        if sep_id is None and settings.get("add_eos_token") and settings.get("tokenizer_class") in ENDING:
            named = settings.get("eos_token")
            end = tokenizer.token_to_id(str(named.get("content") if isinstance(named, dict) else named))
            if end is None:
                raise ValueError(f"add_eos_token, but the tokenizer has no eos_token {named!r}")
            return replace(frame, sep_id=end, text=[*around, end])
        return frame

    @property
    def unsupported(self) -> ValueError:
        """The error for a template of a form that is not supported."""
        return ValueError(
            f"the tokenizer puts the tokens {self.text} around a text and {self.pair} around two; supported are one "
            "before, and one that separates and ends them"
        )

    @property
    def between(self) -> tuple[int, ...]:
        """The tokens between a query and a candidate; Llama 3's tokenizer begins the second text as it does the first.

        Raises ValueError for a template of another form, which a bi-encoder may have.
        """
        count = len(self.pair) - len(self.text)
        if self.cls_id is None or count < 0 or self.text != [self.pair[0], *self.pair[1 + count :]]:
            raise self.unsupported
        return tuple(self.pair[1 : 1 + count])

    @property
    def query_separators(self) -> int:
        """The number of `sep_id` between a query and a candidate. Raises ValueError if there is none, or another."""
        if {*self.between} != {self.sep_id}:
            raise self.unsupported
        return len(self.between)

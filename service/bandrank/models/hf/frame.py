"""The special tokens that a model's tokenizer puts around texts, whatever the family of the encoder:
intfloat/multilingual-e5-small is a BERT that reads XLM-RoBERTa's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import load_tokenizer

# Tokenizer classes that give no token types unless their files say so: TokenizersBackend is what transformers 5 makes
# of a tokenizer without a class of its own. Others give types, or have one type in their templates. So does
# PreTrainedTokenizerFast, as transformers 4 called such a tokenizer: models were trained with its types, although
# transformers 5 reads the same folder without them.
UNTYPED = {"DistilBertTokenizer", "DistilBertTokenizerFast", "TokenizersBackend"}


@dataclass(frozen=True)
class Frame:
    """The tokens `cls_id` before a text and `sep_id` behind it.

    pair: the tokens around two texts.  token_types: whether tokens of the second text have another type than the
    first's.
    """

    cls_id: int
    sep_id: int
    pair: Sequence[int]
    token_types: bool

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """The frame in the template of a folder's tokenizer; None if it has no template.

        Raises BadCheckpoint, and ValueError for a template of another form.
        """
        tokenizer = load_tokenizer(folder)
        text, pair = tokenizer.encode("").ids, tokenizer.encode("", "")
        if not text:
            return None
        if len(text) != 2:
            raise _another(text, pair.ids)
        settings = read_object(folder / "tokenizer_config.json", optional=True)
        inputs = settings.get("model_input_names")
        typed = "token_type_ids" in inputs if inputs else settings.get("tokenizer_class") not in UNTYPED
        cls_id, sep_id = text
        return cls(cls_id, sep_id, pair.ids, typed and pair.type_ids[-1:] == [1])

    @property
    def query_separators(self) -> int:
        """The number of `sep_id` between a query and a candidate. Raises ValueError for a template of another form,
        which a bi-encoder may have.
        """
        count = len(self.pair) - 2
        if count < 1 or self.pair != [self.cls_id, *[self.sep_id] * (count + 1)]:
            raise _another([self.cls_id, self.sep_id], self.pair)
        return count


def _another(text: Sequence[int], pair: Sequence[int]) -> ValueError:
    return ValueError(
        f"the tokenizer puts the tokens {text} around a text and {pair} around two; supported are one before, and one "
        "that separates and ends them"
    )

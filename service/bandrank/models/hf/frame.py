"""The special tokens around texts, as a model's tokenizer puts them there, whatever family the encoder is of:
intfloat/multilingual-e5-small is a BERT that reads XLM-RoBERTa's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import load_tokenizer

# Classes of tokenizers that hand out no token types where their files do not say what they do: TokenizersBackend is
# what transformers 5 makes of a tokenizer without a class of its own. Others do, or have one type in their templates.
# So does PreTrainedTokenizerFast, the name that transformers 4 saved for such a tokenizer: it handed types out, and the
# model was trained with them, although transformers 5 reads the same folder without.
UNTYPED = {"DistilBertTokenizer", "DistilBertTokenizerFast", "TokenizersBackend"}


@dataclass(frozen=True)
class Frame:
    """A text stands between `cls_id` and `sep_id`.

    pair: the tokens around two texts.  token_types: whether those of the second have another type than the first's.
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
        """How many `sep_id` stand between a query and a candidate, which bi-encoders need not know. Raises ValueError
        for a template of another form.
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

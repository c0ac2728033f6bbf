"""The tiny word-piece tokenizer of the tests; `python -m support.tokenizer` writes tests/data/tiny_tokenizer.json.

Any text of letters, digits and common punctuation has pieces; the words of `WORDS` are one piece each.
"""

import string
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TOKENIZER_FILE = Path(__file__).resolve().parents[1] / "data" / "tiny_tokenizer.json"

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[unused2]", "[unused3]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = (
    SPECIAL.index(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
)
SENTENCE_ID = SPECIAL.index("[unused0]")  # what a QDS-Transformer puts before each sentence
SUFFIXES = ["##ed", "##er", "##ing", "##ly", "##tion"]
WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they
    which one you were all her she there would their we him been has when who will no more if out so up said
    what its about than into them can only other time new some could these two may first then do any like my now
    over such our man me even most made after also well did many before must
""".split()  # noqa: SIM905  # a hundred lines as a list


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer that all tiny models share."""
    return Tokenizer.from_file(str(TOKENIZER_FILE))


@cache
def tiny_vocabulary() -> Mapping[str, int]:
    """The ids of the tiny tokenizer's pieces."""
    return tiny_tokenizer().get_vocab()  # type: ignore[no-any-return]  # a dict


def vocab_size() -> int:
    """The number of the tiny tokenizer's pieces."""
    return len(tiny_vocabulary())


def build_tokenizer() -> Tokenizer:
    """BERT's lower-casing word pieces over about 200 entries; [CLS] and [SEP] are put around a text when asked for."""
    alphabet = [*string.ascii_lowercase, *string.digits]
    vocabulary = [
        *SPECIAL,
        *string.punctuation,
        *alphabet,
        *(f"##{letter}" for letter in alphabet),
        *SUFFIXES,
        *WORDS,
    ]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106  # no secret
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS_ID), ("[SEP]", SEP_ID)],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


if __name__ == "__main__":
    build_tokenizer().save(str(TOKENIZER_FILE), pretty=False)

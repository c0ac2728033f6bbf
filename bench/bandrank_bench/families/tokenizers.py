"""Tokenizers of the same kinds as the published models', trained on the benchmark's prose.

They split and frame texts as the published ones do, with the vocabulary of a small corpus.
"""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bandrank_bench.families.prompt import PARTS
from bandrank_bench.workloads import PROSE

VOCAB_SIZE = 3000
XLM_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
MODERNBERT = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = ("<think>", "</think>")
# How Qwen's tokenizers pre-split a text.
QWEN_PARTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def unigram() -> Tokenizer:
    """XLM-RoBERTa's kind: unigram pieces with a metaspace, `<s> A </s></s> B </s>`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(XLM_ROBERTA),
        unk_token="<unk>",  # noqa: S106  # no secret
        show_progress=False,
    )
    tokenizer.train_from_iterator(_prose(), trainer)
    start, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", start), ("</s>", end)],
    )
    return tokenizer


def byte_pairs() -> Tokenizer:
    """ModernBERT's kind: byte-level pieces, `[CLS] A [SEP] B [SEP]`. Unlike there, even the first word follows a space,
    so that a word has the same pieces everywhere.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(_prose(), _byte_level_trainer(MODERNBERT))
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return tokenizer


def chat_byte_pairs() -> Tokenizer:
    """Qwen's kind: byte-level pieces with the tokens of a chat, and nothing around a text.

    The prompt's words are single pieces, as in a vocabulary of 150,000.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PARTS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([*_prose(), *PARTS * 20, *["yes", "no"] * 20], _byte_level_trainer(QWEN))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINKING])
    return tokenizer


def _byte_level_trainer(special: Sequence[str]) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )


def _prose() -> list[str]:
    return [f" {line}" for line in PROSE.read_text(encoding="utf-8").splitlines()]  # a space before every word

"""How much of a text sentence-transformers reads, by the settings of a folder."""

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.chat_template import puts_into_messages
from bandrank.models.hf.files import transformer_settings
from bandrank.models.hf.model import Model

OF_A_SIDE = ("query_length", "document_length")


def most_tokens(
    model: Model, most: int, *, by_tokenizer: bool = True, by_side: bool = False, in_messages: bool = False
) -> int:
    """The most token ids of a text, special tokens included: max_seq_length, or else the tokenizer's limit, but at most
    `most`.

    by_tokenizer: whether the tokenizer's limit counts.  by_side: whether each side may have a limit of its own, which
    the caller reads.  in_messages: whether the caller supports texts that a chat template joins.
    Raises BadCheckpoint for settings that read texts in other ways.
    """
    settings = transformer_settings(model.folder)
    tokenizer = read_object(model.folder / "tokenizer_config.json", optional=True)
    other = {name: settings[name] for name in OF_A_SIDE if settings.get(name) and not by_side}
    called_with = settings.get("processing_kwargs") or {}
    other |= {f"processing_kwargs.{name}": called_with[name] for name in ("text", "common") if called_with.get(name)}
    truncation = read_object(model.folder / "tokenizer.json", optional=True).get("truncation") or {}
    if (side := tokenizer.get("truncation_side") or truncation.get("direction", "right").lower()) != "right":
        other["truncation_side"] = side
    if puts_into_messages(model.folder) and not in_messages:
        raise model.refuse(
            "texts that are put into a chat template (`message` in modality_config) are not supported, unless it only "
            "puts a prompt before a text and there is a processor_config.json"
        )
    if other:
        raise model.refuse(f"texts that are read by {other} are not supported")
    limit = settings.get("max_seq_length") or (by_tokenizer and tokenizer.get("model_max_length")) or most
    return min(int(limit), most)

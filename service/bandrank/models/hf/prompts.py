"""The words that sentence-transformers puts before texts, from config_sentence_transformers.json."""

import re
from collections.abc import Mapping
from typing import Any

from bandrank.models.wording import INSTRUCTION, TEXT, Wording

DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names under which that of documents is looked for


def query_wording(library: Mapping[str, Any]) -> Wording:
    """The words around a query; the task in them is an instruction.

    Raises ValueError for a prompt that is no text, and if there is one for documents too.
    """
    prompts = library.get("prompts") or {}
    prompt = prompts.get("query", "")
    if not isinstance(prompt, str):
        raise ValueError(f"the prompt for queries must be a text, got {prompt!r}")  # noqa: TRY004  # a bad value
    if of_documents := next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), None):
        raise ValueError(f"a prompt for documents is not supported: {of_documents!r}; put it before the texts yourself")
    if match := re.fullmatch(r"(Instruct: )(.+)(\nQuery: ?)", prompt):
        return Wording(prompt + TEXT, match[1] + INSTRUCTION + match[3] + TEXT)
    return Wording(prompt + TEXT)

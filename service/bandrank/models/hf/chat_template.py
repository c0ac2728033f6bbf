"""Renders a pair in a model's own chat template, as sentence-transformers does."""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from bandrank.models.checkpoint import BadCheckpoint, read_object
from bandrank.models.hf.files import transformer_settings
from bandrank.models.hf.model import Model

Roles = tuple[str, str]
QUERY_AND_DOCUMENT: Roles = ("query", "document")
PAIR, SPACED = ("which pair?", "This one."), (" which pair?\n", " This one.\n")
OF_SENTENCE_TRANSFORMERS = {"restore_suffix", "padding", "truncation", "max_length"}  # not for the template


def puts_into_messages(folder: Path) -> bool:
    """Whether sentence-transformers puts all texts into the folder's chat template, by the settings that it saved."""
    return "message" in (transformer_settings(folder).get("modality_config") or {})


def joins_plainly(folder: Path) -> bool:
    """Whether the chat template only puts a prompt before a text, and a processor adds the special tokens, which a
    tokenizer alone would leave out.
    """
    if not (puts_into_messages(folder) and (folder / "processor_config.json").is_file()):
        return False
    in_parts = transformer_settings(folder)["modality_config"]["message"].get("format") != "flat"
    system, user = (_message(*each, in_parts=in_parts) for each in (("system", " a: "), ("user", " B \n")))
    given = {"bos_token": "<bos>", "eos_token": "<eos>"} | _variables(folder)
    try:
        rendered: Any = render_jinja_template([[user], [system, user]], chat_template=read_template(folder), **given)
    except Exception:  # noqa: BLE001  # a template may raise anything
        return False
    return bool(rendered[0] == [" B \n", " a:  B \n"])


def _rendered_pair(
    folder: Path, query: str, document: str, *, task: str = "", roles: Roles = QUERY_AND_DOCUMENT, begin: str = ""
) -> str | None:
    """The whole text of a pair up to the answer, as messages of two roles behind a `system` message with the task, if
    any; None if the folder has no template. begin: what the template may put before all else, as its `bos_token`.

    Raises BadCheckpoint for a template that fails, or loses the query or the document.
    """
    if (template := read_template(folder)) is None:
        return None
    texts = {"system": task} if task else {}
    texts |= dict(zip(roles, (query, document), strict=True))
    variables = _variables(folder) | {"bos_token": begin}
    if "user" in roles:  # the model answers a user's message
        variables["add_generation_prompt"] = True
    reasons = []
    for in_parts in (False, True):  # templates take contents as texts or as lists of parts
        messages = [_message(role, text, in_parts=in_parts) for role, text in texts.items()]
        try:
            rendered: Any = render_jinja_template(conversations=[messages], chat_template=template, **variables)
        except Exception as error:  # noqa: BLE001  # a template may raise anything
            reasons.append(str(error))
        else:
            text = str(rendered[0][0])  # the first of the texts
            if query in text and document in text:
                return text
            reasons.append("its text lacks the query or the document")
    raise BadCheckpoint(f"{folder}: the chat template cannot render a query and a document: {reasons[0]}")


def require_words(
    model: Model,
    words: Callable[[str, str], str],
    task: str = "",
    *,
    roles: Roles = QUERY_AND_DOCUMENT,
    stripped: bool = False,
    begin: str = "",
) -> bool:
    """Whether a model has a template of its own. Raises BadCheckpoint if the template words a pair differently.

    words: gives the whole text of a query and a document.  task, roles: as in `_rendered_pair`.  stripped: whether
    white space around both may be dropped.  begin: what precedes the words.
    """
    for query, document in (PAIR,) if stripped else (PAIR, SPACED):
        rendered = _rendered_pair(model.folder, query, document, task=task, roles=roles, begin=begin)
        if rendered is not None and rendered != (known := begin + words(query, document)):
            end = next(i for i, (a, b) in enumerate(zip_longest(rendered, known)) if a != b)
            raise model.refuse(
                f"a chat template that has {rendered[end : end + 40]!r} where that of the published models has "
                f"{known[end : end + 40]!r} is not supported"
            )
    return rendered is not None


def begin_of_messages(folder: Path) -> str:
    """The token that the template puts before all else, as sentence-transformers then does; empty if it puts none."""
    named = read_object(folder / "tokenizer_config.json", optional=True).get("bos_token") or ""
    begin = str(named["content"] if isinstance(named, dict) else named)
    rendered = _rendered_pair(folder, *PAIR, begin=begin)
    return begin if (rendered or "").startswith(begin) else ""


def keeps_white_space(folder: Path) -> bool:
    """Whether the template leaves white space around a query and a document alone."""
    try:
        return _rendered_pair(folder, *SPACED) is not None
    except BadCheckpoint:
        return False


def _variables(folder: Path) -> dict[str, Any]:
    """The variables that sentence-transformers gives to the template."""
    words = (transformer_settings(folder).get("processing_kwargs") or {}).get("chat_template") or {}
    return {name: value for name, value in words.items() if name not in OF_SENTENCE_TRANSFORMERS}


def _message(role: str, text: str, *, in_parts: bool) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}


def read_template(folder: Path) -> str | None:
    """The chat template of a folder, if it has one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_object(folder / "tokenizer_config.json", optional=True).get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {each["name"]: each["template"] for each in template}.get("default")
    return template

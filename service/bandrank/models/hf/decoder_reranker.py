"""Decoders as re-rankers: the prompts that they were trained with, and one or two rows of their output matrix.

The prompts are those of the model cards of Qwen/Qwen3-Reranker-0.6B, mixedbread-ai/mxbai-rerank-base-v2 and
BAAI/bge-reranker-v2-gemma, whose score is the logit of "Yes". As there, the parts of a prompt are tokenised apart. In
the first two a candidate follows a colon, which neither tokenizer joins with the space behind it; so the parts with the
query and the candidate can be tokenised apart too.

zeroentropy/zerank-1-small brings its own code, which is not run: the query is the system message and the candidate the
user message, both stripped of white space, and the score is a fifth of the logit of "Yes". Only the name tells
zeroentropy/zerank-2 and conversions, and a template that sentence-transformers renders must agree.

ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b and its conversions are Qwen3 too, but read the candidate before
the query, and an instruction behind the query; the score is the logit of token 0. The 6b is a Mistral, whose tokenizer
begins a text with a token.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bandrank.models.architectures.candidate_first_reranker import CandidateFirstReranker
from bandrank.models.architectures.decoder_reranker import DecoderReranker, Prompt
from bandrank.models.checkpoint import BadCheckpoint, read_json, read_object
from bandrank.models.hf.chat_template import (
    PAIR,
    QUERY_AND_DOCUMENT,
    Roles,
    begin_of_messages,
    keeps_white_space,
    puts_into_messages,
    read_template,
    require_words,
)
from bandrank.models.hf.files import load_tokenizer, own_class
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import default_prompt, require_no_prompt
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS, require_no_code
from bandrank.models.known import is_asked_as_known
from bandrank.models.scorer import Scorer
from bandrank.models.wording import PLAIN, TEXT, Wording

log = logging.getLogger(__name__)

TASK = "Given a web search query, retrieve relevant passages that answer the query"

AFTER_SPACE = Wording(" {text}")


@dataclass(frozen=True)
class PromptText:
    """A prompt before it is tokenised: head, query, between, candidate, tail, or with the texts the other way round.
    Each part is tokenised apart.

    relevant, irrelevant: the tokens whose logits are compared behind the prompt, the first perhaps by its id; an empty
    `irrelevant` is none.  task: the instruction of requests that bring none.  scale: the factor of the logits.  roles:
    the roles of the two texts in a chat template.  whole: whether its authors tokenise it as one text, before which the
    tokenizer may put a token.
    """

    head: str
    query: Wording
    between: tuple[str, ...]
    tail: tuple[str, ...]
    relevant: str | int
    irrelevant: str
    task: str = ""
    candidate: Wording = AFTER_SPACE
    scale: float = 1.0
    roles: Roles = QUERY_AND_DOCUMENT
    candidate_first: bool = False
    whole: bool = False

    def parts(self, query: str, candidate: str) -> list[str]:
        """The parts of the text of a pair whose request brings no instruction."""
        (before, after), (begin, end) = self.query.around(), self.candidate.around()
        texts = [f"{before}{query}{after}", f"{begin}{candidate}{end}"]
        first, second = reversed(texts) if self.candidate_first else texts
        return [self.head, first, *self.between, second, *self.tail]

    def around(self, query: str, candidate: str) -> str:
        """The whole text of such a pair."""
        return "".join(self.parts(query, candidate))

    def tokenised(self, folder: Path) -> Prompt:
        """The prompt in token ids of the folder's tokenizer. Raises BadCheckpoint, also for a `whole` prompt that the
        tokenizer reads otherwise than its parts.
        """
        tokenizer = load_tokenizer(folder)

        def ids(*parts: str) -> tuple[int, ...]:
            encodings = tokenizer.encode_batch(list(parts), add_special_tokens=False)
            return tuple(token for encoding in encodings for token in encoding.ids)

        begin: tuple[int, ...] = ()
        if self.whole:
            whole, apart = tuple(tokenizer.encode(self.around(*PAIR)).ids), ids(*self.parts(*PAIR))
            begin = whole[: max(0, len(whole) - len(apart))]
            if begin + apart != whole:
                raise BadCheckpoint(f"{folder}: a tokenizer that cannot read a prompt in parts is not supported")
        _, closing = self.candidate.around()
        parts = (begin + ids(self.head), ids(*self.between), ids(*self.tail))
        return Prompt(*parts, query=self.query, candidate=self.candidate, closing=ids(closing))


PROMPTS = {  # by model_type
    "qwen3": PromptText(
        head=(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        ),
        query=Wording(
            plain=f"<Instruct>: {TASK}\n<Query>: {{text}}\n<Document>:",
            instructed="<Instruct>: {instruction}\n<Query>: {text}\n<Document>:",
        ),
        between=(),
        tail=("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",),
        relevant="yes",
        irrelevant="no",
        task=TASK,
    ),
    "qwen2": PromptText(
        head=(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n"
        ),
        query=Wording(plain="query: {text}", instructed="instruction: {instruction}\nquery: {text}"),
        between=("\n", "document:"),
        tail=(
            "\n",
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        relevant="1",
        irrelevant="0",
    ),
    "gemma": PromptText(
        head="<bos>",
        query=Wording("A: {text}"),
        between=("\n",),
        tail=(
            "\n",
            "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'.",
        ),
        relevant="Yes",
        irrelevant="",
        candidate=Wording("B: {text}"),
    ),
}
PROMPTS_BY_NAME = {  # by a part of the names; the first line of a chat template tells them too
    "ctxl-rerank-v2": PromptText(
        head="Check whether a given document contains information helpful to answer the query.\n<Document>",
        query=Wording("<Query> {text}", "<Query> {text} {instruction}"),
        between=(),
        tail=(" ??",),
        relevant=0,
        irrelevant="",
        candidate=Wording(" {text}\n"),
        candidate_first=True,
        whole=True,
    ),
}
ZERANK, CODE_OF_ZERANK = "zerank", "ZEConfig"  # a part of the names, and the config class in the authors' own code
PROMPT_OF_ZERANK = PromptText(
    head="<|im_start|>system\n",
    query=PLAIN,
    between=("<|im_end|>\n<|im_start|>user\n",),
    tail=("<|im_end|>\n<|im_start|>assistant\n",),
    relevant="Yes",
    irrelevant="",
    candidate=PLAIN,
    scale=0.2,
    roles=("system", "user"),
    whole=True,
)


def read(model: Model, modules: list[str]) -> Scorer:
    """The re-ranker of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor.

    Logs a warning if sentence-transformers, which saved the model, asks it without a prompt: whoever fine-tuned it may
    have done the same, or have put the prompt into the texts, as with tomaarsen/Qwen3-Reranker-0.6B-seq-cls. Logs
    another if neither files nor name tell it from other decoders: lightblue/lb-reranker-0.5B-v1.0 and chat models have
    a re-ranker's files too.
    modules: the modules of sentence-transformers; Transformer and LogitScore may name the two tokens.
    """
    if modules not in ([], ["Transformer"], ["Transformer", "LogitScore"]):
        raise model.refuse(f"modules {modules} are not supported for a decoder that re-ranks")
    text = _prompt(model)
    in_messages = bool(modules) and puts_into_messages(model.folder)  # others join pairs plainly
    asks = in_messages or own_class(model.settings)
    stripped = text is PROMPT_OF_ZERANK and not (in_messages and keeps_white_space(model.folder))
    if asks and read_template(model.folder) and text.query.instructed and (task := default_prompt(model)):
        text = replace(text, query=Wording(TEXT.join(text.query.around(task)), text.query.instructed), task=task)
    task = require_no_prompt(model, text.task)
    roles, begin = text.roles, ""
    if in_messages:
        roles, begin = QUERY_AND_DOCUMENT, begin_of_messages(model.folder) if text.whole else ""
    templated = asks and require_words(model, text.around, task, roles=roles, stripped=stripped, begin=begin)
    if modules and not templated:
        log.warning(
            "%s: sentence-transformers gives this model a query and a document without a prompt; bandrank gives it the "
            "prompt of the published %s re-rankers, and a model that was trained without it ranks badly",
            model.folder,
            model.settings["model_type"],
        )
    elif not templated and text in PROMPTS.values():
        warn_unless_known(model)
    if in_messages:  # the tokenizer puts nothing before them
        text = replace(text, head=begin + text.head, whole=False)
    max_tokens = min(MAX_DECODER_TOKENS, model.encoder.max_positions)
    kind = CandidateFirstReranker if text.candidate_first else DecoderReranker
    config = kind.config_class(
        encoder=model.encoder,
        prompt=text.tokenised(model.folder),
        max_tokens=max_tokens,
        max_query_tokens=max_tokens * 3 // 4,
        max_candidate_tokens=2 * max_tokens,
    )
    scorer = model.assemble(kind, config, {"head.classifier.weight": text.scale * _head(model, text)})
    scorer.strips_texts = stripped
    return scorer


def warn_unless_known(model: Model) -> None:
    """Logs a warning unless the name tells that a re-ranker is asked in the words of the published ones."""
    if not is_asked_as_known(model.name):
        log.warning(
            "%s: neither its files nor its name tell which prompt it was trained with; bandrank gives it that of the "
            "published %s re-rankers, and a model that was trained with another, or for another task, ranks badly",
            model.name,
            model.settings["model_type"],
        )


def _prompt(model: Model) -> PromptText:
    """The prompt that the model was trained with. Raises BadCheckpoint if unknown code builds it."""
    if own_class(model.settings) == CODE_OF_ZERANK:
        return PROMPT_OF_ZERANK
    require_no_code(model)
    if ZERANK in model.name.lower():
        return PROMPT_OF_ZERANK
    template = read_template(model.folder) or ""
    for name, text in PROMPTS_BY_NAME.items():
        if name in model.name.lower() or text.head.splitlines()[0] in template:
            return text
    if (kind := model.settings["model_type"]) not in PROMPTS:
        raise model.refuse(f"a {kind} that re-ranks is not supported: nothing says in which words it is asked")
    return PROMPTS[kind]


def _compared(model: Model, text: PromptText) -> list[Any]:
    """The ids of the token whose logit is the score, and of one whose logit is subtracted, if any: those that the
    module LogitScore names, or those of the prompt. Raises BadCheckpoint.
    """
    path = model.folder / "modules.json"
    modules = read_json(path) if path.is_file() else []
    if len(modules) < 2:
        named = [each for each in (text.relevant, text.irrelevant) if each != ""]
        return [each if isinstance(each, int) else model.token_id(each) for each in named]
    settings = read_object(model.folder / modules[1].get("path", "1_LogitScore") / "config.json")
    relevant, irrelevant = settings.get("true_token_id"), settings.get("false_token_id")
    return [relevant] if irrelevant is None else [relevant, irrelevant]


def _labels(model: Model) -> list[str]:
    """The names of a classifier's outputs, in order."""
    names = model.settings.get("id2label") or {}
    return [str(names[index]) for index in sorted(names, key=int)]


def _head(model: Model, text: PromptText) -> torch.Tensor:
    """(1, hidden_size) the weights of the score: a classifier with one output; the difference of its two outputs, if
    they are named like the compared tokens; or a row of the output matrix or the difference of two, the only rows that
    are read.
    """
    # The default is that of the library, which writes a value that differs from it, or, before version 5, from True.
    weights, tied = model.weights, model.settings.get("tie_word_embeddings", model.settings["model_type"] == "gemma")
    if (classifier := weights.get("score.weight")) is not None:
        if _labels(model) == [text.irrelevant, text.relevant] and len(classifier) == 2:
            return classifier[1:].float() - classifier[:1].float()
        if len(classifier) != 1:
            raise model.refuse(f"a re-ranker needs a classifier with one output, but this model has {len(classifier)}")
        return classifier.float()
    matrix = weights.get("lm_head.weight", weights["embed_tokens.weight"] if tied else None)
    if model.headless or matrix is None:
        raise model.refuse("a decoder without an output matrix cannot re-rank; an embedding model needs a modules.json")
    tokens = _compared(model, text)
    if not all(isinstance(token, int) and 0 <= token < len(matrix) for token in tokens):
        raise model.refuse(f"a score must be the logit of a token, or of two, not of {' and '.join(map(repr, tokens))}")
    relevant, *others = (matrix[token : token + 1].float() for token in tokens)
    return relevant - others[0] if others else relevant

"""The prompt of Qwen/Qwen3-Reranker-0.6B, assembled as on its model card, and as a chat template."""

from collections.abc import Sequence

from tokenizers import Tokenizer

HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY, DOCUMENT = f"<Instruct>: {INSTRUCTION}\n<Query>: ", "\n<Document>: "
PARTS = [HEAD, TAIL, QUERY, DOCUMENT]


def chat_template() -> str:
    """A template for messages with the roles `query` and `document`, as sentence-transformers passes pairs."""
    query, document = (
        f"(messages | selectattr('role', 'eq', '{role}') | map(attribute='content') | first)"
        for role in ("query", "document")
    )
    return "{{ %r ~ %s ~ %r ~ %s ~ %r }}" % (HEAD + QUERY, query, DOCUMENT, document, TAIL)  # noqa: UP031  # braces


def prompts(tokenizer: Tokenizer, query: str, passages: Sequence[str]) -> list[list[int]]:
    """The token ids of every pair; the beginning, the middle and the end are tokenised separately."""
    head, tail = (tokenizer.encode(text, add_special_tokens=False).ids for text in (HEAD, TAIL))
    bodies = tokenizer.encode_batch_fast(
        [f"{QUERY}{query}{DOCUMENT}{passage}" for passage in passages], add_special_tokens=False
    )
    return [[*head, *body.ids, *tail] for body in bodies]

"""The prompts of published re-rankers, put together as their authors' code does it: the oracle of our templates.

Sources: the model cards of Qwen/Qwen3-Reranker-0.6B, mixedbread-ai/mxbai-rerank-base-v2, BAAI/bge-reranker-v2-gemma and
ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b, and modeling_zeranker.py of zeroentropy/zerank-1-small.
"""

from collections.abc import Callable

from tokenizers import Tokenizer, normalizers

DEFAULT_TASK = "Given a web search query, retrieve relevant passages that answer the query"

Pair = Callable[[Tokenizer, str, str, str], list[int]]  # the ids for an instruction, a query and a document


def qwen3_pair(tokenizer: Tokenizer, instruction: str, query: str, document: str) -> list[int]:
    """Tokenises three pieces separately: the beginning, the end and everything in between."""
    return [
        *_ids(
            tokenizer,
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        ),
        *_ids(
            tokenizer,
            f"<Instruct>: {instruction or DEFAULT_TASK}\n<Query>: {query}\n<Document>: {document}",
        ),
        *_ids(tokenizer, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ]


def mxbai_pair(tokenizer: Tokenizer, instruction: str, query: str, document: str) -> list[int]:
    """Tokenises seven pieces separately; instruction and query are in the same piece."""
    pieces = [
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        f"instruction: {instruction}\nquery: {query}" if instruction else f"query: {query}",
        "\n",
        f"document: {document}",
        "\n",
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]
    return [token for piece in pieces for token in _ids(tokenizer, piece)]


def zerank_pair(tokenizer: Tokenizer, _instruction: str, query: str, document: str) -> list[int]:
    """Tokenises one text without changing its ends; there is no place for an instruction in it."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.normalizer = normalizers.NFC()
    return _ids(
        plain,
        f"<|im_start|>system\n{query.strip()}<|im_end|>\n<|im_start|>user\n{document.strip()}<|im_end|>\n"
        "<|im_start|>assistant\n",
    )


def contextual_pair(tokenizer: Tokenizer, instruction: str, query: str, document: str) -> list[int]:
    """Tokenises one text, in which the document comes first."""
    return _ids(tokenizer, contextual_text(instruction, query, document))


def contextual_text(instruction: str, query: str, document: str) -> str:
    """That text."""
    asked = f"{query} {instruction}" if instruction else query
    return (
        "Check whether a given document contains information helpful to answer the query.\n"
        f"<Document> {document}\n<Query> {asked} ??"
    )


def gemma_pair(tokenizer: Tokenizer, _instruction: str, query: str, document: str) -> list[int]:
    """Tokenises five pieces separately and puts <bos> before them; there is no place for an instruction."""
    task = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'."
    )
    pieces = [f"A: {query}", "\n", f"B: {document}", "\n", task]
    return [tokenizer.token_to_id("<bos>"), *(token for piece in pieces for token in _ids(tokenizer, piece))]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids

"""The model families that load from Hugging Face's format, with models that people use; a new family adds an entry."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A model on the hub.

    parameters: their number, if its authors state it.  tokens: the most tokens that are read of a text, or of a query
    and a candidate together.  dot: whether its card compares vectors by the dot product, which its files need not say.
    """

    id: str
    role: str
    parameters: str
    tokens: int
    special: str = ""
    dot: bool = False


@dataclass(frozen=True)
class KnownFamily:
    """A family: the values of `model_type` in config.json, and what sets it apart."""

    name: str
    model_types: tuple[str, ...]
    special: str
    models: tuple[KnownModel, ...]


CROSS, SPARSE, BI, COLBERT = "cross-encoder", "sparse cross-encoder", "bi-encoder", "ColBERT"
SPLADE, BY_TABLE = "SPLADE", "queries are read by a table"

KNOWN_FAMILIES = (
    KnownFamily(
        "BERT",
        ("bert",),
        "learnt positions; [CLS] through a tanh pooler",
        (
            KnownModel("cross-encoder/ms-marco-MiniLM-L4-v2", CROSS, "19.2M", 512, "scores are logits"),
            KnownModel("cross-encoder/ms-marco-MiniLM-L6-v2", CROSS, "22.7M", 512, "scores are logits"),
            KnownModel("cross-encoder/ms-marco-MiniLM-L12-v2", CROSS, "33.4M", 512, "scores are logits"),
            KnownModel("webis/sparse-cross-encoder-4-512", SPARSE, "", 512, "window 4"),
            KnownModel("webis/sparse-cross-encoder-4-4096", SPARSE, "", 4096, "window 4, interpolated positions"),
            KnownModel("sentence-transformers/all-MiniLM-L6-v2", BI, "22.7M", 256, "mean, cosine"),
            KnownModel("BAAI/bge-base-en-v1.5", BI, "109M", 512, "[CLS], cosine"),
            KnownModel("intfloat/multilingual-e5-small", BI, "", 512, "put `query: ` and `passage: ` before texts"),
            KnownModel(
                "sentence-transformers/msmarco-bert-base-dot-v5", BI, "109M", 512, "mean, dot product", dot=True
            ),
            KnownModel("sentence-transformers/LaBSE", BI, "471M", 256, "[CLS] through a tanh layer, cosine"),
            KnownModel("Snowflake/snowflake-arctic-embed-m", BI, "109M", 512, "[CLS], cosine; queries have a prompt"),
            KnownModel("colbert-ir/colbertv2.0", COLBERT, "110M", 220, "128 dimensions, Stanford's format"),
            KnownModel("answerdotai/answerai-colbert-small-v1", COLBERT, "33M", 300, "96 dimensions"),
            KnownModel("naver/splade-v3", SPLADE, "110M", 512, "not for commercial use"),
            KnownModel(
                "opensearch-project/opensearch-neural-sparse-encoding-doc-v2-mini", SPLADE, "23M", 512, BY_TABLE
            ),
        ),
    ),
    KnownFamily(
        "ELECTRA",
        ("electra",),
        "BERT's encoder; [CLS] through a GELU layer, no pooler",
        (KnownModel("cross-encoder/ms-marco-electra-base", CROSS, "109M", 512),),
    ),
    KnownFamily(
        "RoBERTa and XLM-RoBERTa",
        ("roberta", "xlm-roberta", "camembert", "jina_embeddings_v3"),
        "positions from 2, or rotary; two separators between query and candidate; the first token through a tanh layer",
        (
            KnownModel("BAAI/bge-reranker-base", CROSS, "278M", 512, "Chinese and English"),
            KnownModel("BAAI/bge-reranker-large", CROSS, "560M", 512, "Chinese and English"),
            KnownModel("BAAI/bge-reranker-v2-m3", CROSS, "568M", 8192, "multilingual"),
            KnownModel(
                "jinaai/jina-reranker-v2-base-multilingual", CROSS, "278M", 1024, "multilingual; not for commercial use"
            ),
            KnownModel("jinaai/jina-colbert-v2", COLBERT, "560M", 300, "128 dimensions; not for commercial use"),
            KnownModel("jinaai/jina-embeddings-v3", BI, "572M", 8192, "two encoders; not for commercial use"),
            KnownModel("intfloat/multilingual-e5-base", BI, "278M", 512, "put `query: ` and `passage: ` before texts"),
            KnownModel("ibm-granite/granite-embedding-30m-sparse", SPLADE, "30M", 512),
        ),
    ),
    KnownFamily(
        "MPNet",
        ("mpnet",),
        "a bias for the distance of two tokens; positions from 2; no token types",
        (
            KnownModel("sentence-transformers/all-mpnet-base-v2", BI, "109M", 384, "mean, cosine"),
            KnownModel(
                "sentence-transformers/multi-qa-mpnet-base-dot-v1", BI, "109M", 512, "[CLS], dot product", dot=True
            ),
        ),
    ),
    KnownFamily(
        "T5 and mT5",
        ("t5", "mt5"),
        "a bias for the distance of two tokens; re-rankers answer with a decoder; overflows float16",
        (
            KnownModel("sentence-transformers/gtr-t5-base", BI, "110M", 512, "mean, a layer, cosine"),
            KnownModel("sentence-transformers/gtr-t5-large", BI, "335M", 512, "the same"),
            KnownModel("castorini/monot5-base-msmarco", CROSS, "", 512, "true against false"),
            KnownModel("castorini/monot5-base-msmarco-10k", CROSS, "", 512, "the same, trained for less"),
            KnownModel("castorini/monot5-large-msmarco", CROSS, "", 512, "the same"),
            KnownModel("castorini/monot5-3b-msmarco-10k", CROSS, "", 512, "the same"),
            KnownModel("unicamp-dl/InRanker-base", CROSS, "", 512, "the same"),
            KnownModel("unicamp-dl/mt5-base-mmarco-v2", CROSS, "", 512, "multilingual; yes against no"),
            KnownModel("unicamp-dl/monoptt5-base", CROSS, "", 512, "Portuguese; Sim against Não"),
        ),
    ),
    KnownFamily(
        "DistilBERT",
        ("distilbert",),
        "BERT's encoder without token types; [CLS] through a ReLU layer",
        (
            KnownModel(
                "sentence-transformers/msmarco-distilbert-base-tas-b", BI, "66M", 512, "[CLS], dot product", dot=True
            ),
            KnownModel(
                "sentence-transformers/msmarco-distilbert-dot-v5", BI, "66M", 512, "mean, dot product", dot=True
            ),
            KnownModel(
                "opensearch-project/opensearch-neural-sparse-encoding-doc-v2-distill", SPLADE, "67M", 512, BY_TABLE
            ),
            KnownModel(
                "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill", SPLADE, "67M", 512, BY_TABLE
            ),
        ),
    ),
    KnownFamily(
        "NomicBERT",
        ("nomic_bert",),
        "rotary positions, SwiGLU, no biases; [CLS] through a tanh pooler",
        (
            KnownModel(
                "nomic-ai/nomic-embed-text-v1.5",
                BI,
                "137M",
                8192,
                "mean, cosine; put `search_query: ` and `search_document: ` before texts",
            ),
        ),
    ),
    KnownFamily(
        "GTE",
        ("gte", "new"),
        "rotary positions, plain or scaled, GeGLU; [CLS] through a tanh pooler",
        (
            KnownModel("Alibaba-NLP/gte-multilingual-reranker-base", CROSS, "306M", 8192, "multilingual; float16 file"),
            KnownModel("Alibaba-NLP/gte-base-en-v1.5", BI, "137M", 8192, "[CLS], cosine"),
            KnownModel(
                "Snowflake/snowflake-arctic-embed-m-v2.0", BI, "305M", 8192, "[CLS], cosine; queries have a prompt"
            ),
        ),
    ),
    KnownFamily(
        "JinaBERT",
        ("bert",),  # with a config class in its authors' own code
        "BERT with biases that fall with distance (ALiBi) in place of learnt positions, GeGLU; [CLS] through a tanh "
        "pooler",
        (
            KnownModel("jinaai/jina-reranker-v1-tiny-en", CROSS, "33.0M", 8192),
            KnownModel("jinaai/jina-reranker-v1-turbo-en", CROSS, "37.8M", 8192),
            KnownModel("jinaai/jina-embeddings-v2-small-en", BI, "33M", 8192, "mean, cosine"),
            KnownModel("jinaai/jina-embeddings-v2-base-en", BI, "137M", 8192, "mean, cosine"),
            KnownModel("jinaai/jina-embeddings-v2-base-de", BI, "161M", 8192, "mean, cosine; German and English"),
            KnownModel(
                "jinaai/jina-embeddings-v2-base-code", BI, "161M", 8192, "mean, cosine; queries and keys normed"
            ),
            KnownModel("jinaai/jina-colbert-v1-en", COLBERT, "137M", 8192, "128 dimensions, Stanford's format"),
        ),
    ),
    KnownFamily(
        "DeBERTa-v2 and -v3",
        ("deberta-v2",),
        "disentangled attention over buckets of distances; [CLS] through a GELU pooler; overflows float16",
        (
            KnownModel("mixedbread-ai/mxbai-rerank-xsmall-v1", CROSS, "70.8M", 512),
            KnownModel("mixedbread-ai/mxbai-rerank-base-v1", CROSS, "184M", 512),
            KnownModel("mixedbread-ai/mxbai-rerank-large-v1", CROSS, "435M", 512, "float16 file"),
        ),
    ),
    KnownFamily(
        "ModernBERT",
        ("modernbert",),
        "rotary positions, pre-norm, GeGLU or SwiGLU; local attention of 64 tokens on each side in two of three layers",
        (
            KnownModel("Alibaba-NLP/gte-reranker-modernbert-base", CROSS, "150M", 8192, "mean pooling"),
            KnownModel("ibm-granite/granite-embedding-reranker-english-r2", CROSS, "150M", 8192),
            KnownModel("cross-encoder/ettin-reranker-17m-v1", CROSS, "17.6M", 7999, "head of modules; logits"),
            KnownModel("cross-encoder/ettin-reranker-32m-v1", CROSS, "32.8M", 7999, "head of modules; logits"),
            KnownModel("cross-encoder/ettin-reranker-68m-v1", CROSS, "68.6M", 7999, "head of modules; logits"),
            KnownModel("cross-encoder/ettin-reranker-150m-v1", CROSS, "151M", 7999, "head of modules; logits"),
            KnownModel("cross-encoder/ettin-reranker-400m-v1", CROSS, "402M", 7999, "head of modules; logits"),
            KnownModel("cross-encoder/ettin-reranker-1b-v1", CROSS, "1.0B", 7999, "head of modules; logits"),
            KnownModel("ibm-granite/granite-embedding-97m-multilingual-r2", BI, "97M", 32768, "[CLS], cosine"),
            KnownModel("lightonai/GTE-ModernColBERT-v1", COLBERT, "149M", 300, "128 dimensions, PyLate's format"),
        ),
    ),
    KnownFamily(
        "Qwen2 and Qwen3",
        ("qwen2", "qwen3"),
        "decoders with causal attention, asked by a prompt; the score is a token's logit or the difference of two",
        (
            KnownModel("mixedbread-ai/mxbai-rerank-base-v2", CROSS, "494M", 8192, "Qwen2; 1 against 0"),
            KnownModel("mixedbread-ai/mxbai-rerank-large-v2", CROSS, "1.54B", 8192, "Qwen2; 1 against 0"),
            KnownModel("Qwen/Qwen3-Reranker-0.6B", CROSS, "596M", 8192, "yes against no"),
            KnownModel("Qwen/Qwen3-Reranker-4B", CROSS, "4.02B", 8192, "yes against no"),
            KnownModel("Qwen/Qwen3-Reranker-8B", CROSS, "8B", 8192, "yes against no"),
            KnownModel("tomaarsen/Qwen3-Reranker-0.6B-seq-cls", CROSS, "0.6B", 8192, "a classifier of one label"),
            KnownModel("zeroentropy/zerank-1-small", CROSS, "1.7B", 8192, "a fifth of the logit of Yes"),
            KnownModel("zeroentropy/zerank-2", CROSS, "4B", 8192, "the same; not for commercial use"),
            KnownModel(
                "ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b",
                CROSS,
                "1B",
                8192,
                "the candidate precedes the query; takes an instruction; not for commercial use",
            ),
            KnownModel("ContextualAI/ctxl-rerank-v2-instruct-multilingual-2b", CROSS, "2B", 8192, "the same"),
            KnownModel("Qwen/Qwen3-Embedding-0.6B", BI, "596M", 8192, "last token; queries take an instruction"),
        ),
    ),
    KnownFamily(
        "Gemma",
        ("gemma",),
        "as Qwen2, with a GELU, scaled embeddings and one head of keys; the score is the logit of Yes",
        (KnownModel("BAAI/bge-reranker-v2-gemma", CROSS, "2.5B", 8192, "multilingual"),),
    ),
    KnownFamily(
        "Llama without its causal mask",
        ("llama_bidirec",),
        "heads that share keys and values, rotary positions scaled as Llama 3's, asked by a prompt; mean of all tokens",
        (
            KnownModel("nvidia/llama-nemotron-rerank-1b-v2", CROSS, "1B", 8192, "multilingual; scores are logits"),
            KnownModel("nvidia/llama-nemotron-embed-1b-v2", BI, "1B", 8192, "mean, cosine; texts have prompts"),
        ),
    ),
    KnownFamily(
        "EuroBERT and UltraBERT",
        ("eurobert", "ultrabert"),
        "Llama without its causal mask, in UltraBERT with mostly local layers",
        (
            KnownModel(
                "jinaai/jina-embeddings-v5-text-nano-retrieval",
                BI,
                "239M",
                8192,
                "last token, cosine; texts have prompts; not for commercial use",
            ),
        ),
    ),
    KnownFamily(
        "Llama, Mistral and Ministral 3",
        ("llama", "ministral3", "mistral"),
        "as Qwen2, or without its causal mask: bi-encoders, and one re-ranker; Mistral reads no more than its sliding "
        "window",
        (
            KnownModel(
                "intfloat/e5-mistral-7b-instruct", BI, "7B", 4096, "last token, cosine; queries take an instruction"
            ),
            KnownModel(
                "nvidia/Nemotron-3-Embed-1B-BF16", BI, "1B", 8192, "mean, cosine; sees all tokens; texts have prompts"
            ),
            KnownModel(
                "ContextualAI/ctxl-rerank-v2-instruct-multilingual-6b", CROSS, "6B", 8192, "as those of 1B and 2B"
            ),
        ),
    ),
    KnownFamily(
        "Gemma 3 without its causal mask",
        ("gemma3_text",),
        "norms on both sides of each sublayer; local attention of 256 tokens on each side in five of six layers; "
        "overflows float16",
        (KnownModel("google/embeddinggemma-300m", BI, "300M", 2048, "mean, two layers, cosine; texts have prompts"),),
    ),
    KnownFamily(
        "Static embeddings",
        ("model2vec",),
        "a vector for each token, and no layers: bi-encoders that cost next to nothing, as fast models too",
        (
            KnownModel("sentence-transformers/static-retrieval-mrl-en-v1", BI, "", 16384, "cosine; may be cut"),
            KnownModel(
                "sentence-transformers/static-similarity-mrl-multilingual-v1", BI, "", 16384, "the same; multilingual"
            ),
            KnownModel("minishlab/potion-retrieval-32M", BI, "32M", 16384, "cosine"),
            KnownModel("minishlab/potion-multilingual-128M", BI, "128M", 16384, "cosine; multilingual"),
        ),
    ),
    KnownFamily(
        "EmbeddingGemma 2",
        ("embedding_gemma2", "embedding_gemma2_text"),
        "as Gemma 3, with wider heads in global layers; every layer mixes in embeddings; texts only",
        (KnownModel("google/embeddinggemma-2", BI, "270M", 8192, "mean, cosine; texts have prompts"),),
    ),
)


def is_asked_as_known(name: str) -> bool:
    """Whether a name contains that of a known cross-encoder, as names of conversions and fine-tuned models do."""
    known = (model.id for family in KNOWN_FAMILIES for model in family.models if model.role == CROSS)
    return any(each.rsplit("/", 1)[-1].lower() in name.lower() for each in known)


def trained_for_dot(name: str) -> bool:
    """Whether this is a known model whose card compares vectors by the dot product.

    name: a hub id, or a folder named like the model.
    """
    short = name.rstrip("/").rsplit("/", 1)[-1]
    return any(model.dot and model.id.endswith(f"/{short}") for family in KNOWN_FAMILIES for model in family.models)

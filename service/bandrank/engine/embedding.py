"""Embeddings of texts: the vectors by which a served bi-encoder compares them, or the terms of a SPLADE."""

from collections.abc import Sequence
from dataclasses import dataclass

from bandrank.engine.memory import Account
from bandrank.engine.options import Options
from bandrank.engine.representation_source import RepresentationSource
from bandrank.engine.served import Models, ServedModel
from bandrank.engine.text_scorer import AnyTextScorer
from bandrank.engine.tickets import Ticket
from bandrank.errors import InvalidInput, NoEmbeddings
from bandrank.models.ragged import Ragged

NUMBER_BYTES = 16  # memory for each number of a vector: in the cache's form, as float32, and while it is written


@dataclass(frozen=True)
class Embeddings:
    """What texts are compared by, in their order.

    ragged: of n texts, float32 on the host; of a bi-encoder (n, size) vectors, of unit length if it compares by the
    cosine; of a SPLADE (total, 2) ids and weights of each text's terms.  num_tokens: token ids of all texts.
    truncated_tokens: the word pieces cut from each text.  cache_hits, cache_misses: texts looked up.
    """

    model: str
    ragged: Ragged
    num_tokens: int
    truncated_tokens: Sequence[int]
    cache_hits: int
    cache_misses: int


async def embed(
    models: Models,
    texts: Sequence[str],
    *,
    as_queries: bool = False,
    other_task: str = "",
    terms: bool = False,
    model: str | None = None,
    any_model: bool = False,
    size: int | None = None,
    account: Account,
) -> Embeddings:
    """Embeds texts, at least one, encoding and caching them as it would candidates to rank.

    So the dot product of a query's and a document's is the raw score of `/rerank`, rounded as the cache rounds.
    as_queries: whether the texts are queries. If the model puts other words around queries, or has another encoder for
    them, they are not cached.  other_task: what they are for, if for neither side of a search; empty otherwise.
    terms: whether a SPLADE is asked for its terms, and not a bi-encoder for its vectors.
    model, any_model: as in a `Call`.  size: the numbers that a vector must have; None for the model's own size.
    account: the client's; holds the memory of the embeddings.
    Raises NoEmbeddings for a model without such a scorer, InvalidInput for a size that it does not give, a task that
    neither of its two encoders is for and queries that no encoder reads, and what `Models.find`, `Account.hold` and
    `RepresentationSource.represent` raise.
    """
    chosen = models.find(model, or_default=any_model)
    found = _embedder(chosen, terms=terms)
    if found is None:
        others = [name for name, other in models.by_name.items() if _embedder(other, terms=terms)]
        what, kind = ("sparse embeddings", "SPLADE") if terms else ("embeddings", "bi-encoder")
        raise NoEmbeddings(
            f"model {chosen.name!r} gives no {what}: none of its scorers is a {kind}; "
            + (f"models that do: {', '.join(others)}" if others else "neither does any other that is served here")
        )
    scorer, source = found
    reading = scorer.prepared.scorer
    own_size = reading.representation_size
    if size is not None and size != own_size:
        raise InvalidInput(
            f"the embeddings of {chosen.name!r} have {own_size} dimensions, and cannot have {size}; leave that out"
        )
    if other_task and reading.encodes_queries_apart:
        raise InvalidInput(f"{chosen.name!r} has encoders for queries and for documents, and none for {other_task!r}")
    if terms and as_queries and reading.encodes_queries_apart:
        raise InvalidInput(f"{chosen.name!r} reads queries by a table of weights, and embeds documents only")
    if not terms:
        account.hold(NUMBER_BYTES * own_size * len(texts))
    worded = reading.query_template.wording != reading.candidate_template.wording
    apart = as_queries and (worded or reading.encodes_queries_apart)
    engine = chosen.engine
    async with engine.admitted():
        ticket = Ticket(account.client, engine.clock() + engine.request_timeout_s)
        expected = scorer.expected("", texts, Options(keep=not apart))
        if apart:
            expected = {source.query_lane: sum(expected.values())}
        with engine.queue.admitted(ticket, expected):
            represent = source.represent_queries if apart else source.represent
            sourced = await represent(texts, ticket=ticket)
    engine.metrics.embedded_texts.inc(len(texts))
    engine.metrics.truncated_tokens.inc(sum(sourced.truncated_tokens))
    engine.metrics.cache_candidates.labels("hit").inc(sourced.cache_hits)
    engine.metrics.cache_candidates.labels("miss").inc(sourced.cache_misses)
    ragged = source.to_ragged([sourced.candidates])
    if terms:
        account.hold(NUMBER_BYTES * ragged.values.numel())
    return Embeddings(
        model=chosen.name,
        ragged=ragged,
        num_tokens=sum(sourced.num_tokens),
        truncated_tokens=sourced.truncated_tokens,
        cache_hits=sourced.cache_hits,
        cache_misses=sourced.cache_misses,
    )


def gives_embeddings(model: ServedModel) -> bool:
    """Whether one of a model's scorers is a bi-encoder."""
    return _embedder(model, terms=False) is not None


def _embedder(model: ServedModel, *, terms: bool) -> tuple[AnyTextScorer, RepresentationSource] | None:
    """The first of a model's scorers that embeds texts, with the source of its representations."""
    for stage in model.stages:
        scorer, source = stage.scorer.prepared.scorer, stage.scorer.source
        if (scorer.num_terms if terms else scorer.embeds) and isinstance(source, RepresentationSource):
            return stage.scorer, source
    return None

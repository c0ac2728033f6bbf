"""Candidates by id: registered and encoded ahead, and resolved when a request names them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bandrank.engine.candidates import CandidateStore
from bandrank.engine.clients import ITSELF, Client
from bandrank.engine.memory import Account
from bandrank.engine.representation_source import RepresentationSource
from bandrank.engine.served import Models
from bandrank.errors import InputTooLarge, NotReady, UnknownCandidates
from bandrank_kernels.grouping import runs_within

LOOKED_UP_AT_ONCE, CHARACTERS_AT_ONCE = 256, 4 << 20
RESOLVED_AT_ONCE = 256  # ids


@dataclass(slots=True)
class CallCandidate:
    """A candidate of a request: its text, or the id under which one is registered, or both.

    score: its score in the search that found it, if the client knows one.  query: its own, in place of the call's.
    """

    text: str | None = None
    id: str | None = None
    score: float | None = None
    query: str | None = None


@dataclass(slots=True)
class Unresolved:
    """A candidate that was not ranked, because it came without a text and its id was not found. error: the reason."""

    index: int
    id: str
    error: str


def titled(title: str | None, text: str) -> str:
    """The text of a document, after its title if it has one."""
    return f"{title} {text}".strip() if title else text


@dataclass(frozen=True)
class CandidateRegistry:
    """Keeps texts by id in a store, and their representations in the caches of the models' scorers.

    max_resolved_bytes: the most bytes of distinct texts that one request may name by id.
    """

    store: CandidateStore
    models: Models
    max_resolved_bytes: int = 64 << 20

    async def register(
        self,
        texts: Mapping[str, str],
        *,
        client: Client = ITSELF,
        stopping: Callable[[], bool] = lambda: False,
        on_encoded: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Stores texts by id, and encodes them for every scorer that precomputes.

        stopping: asked before each part whether to stop encoding.  on_encoded: called with the number of texts after
        each part.  Returns how many representations had to be computed; the others were cached. After an error some
        texts may be registered, and what was encoded is kept, so that a second call gets further. Raises what
        `CandidateStore.put_many` and `RepresentationSource.encode_ahead` raise.
        """
        await self.store.put_many(texts)
        distinct = list(dict.fromkeys(texts.values()))
        parts = list(runs_within([*map(len, distinct)], CHARACTERS_AT_ONCE, max_items=LOOKED_UP_AT_ONCE))
        computed = 0
        engine = self.models.engine
        async with engine.admitted():
            for source in self._sources:
                for part in parts:
                    computed += await source.encode_ahead(
                        distinct[part],
                        client=client,
                        timeout_s=engine.request_timeout_s,
                        stopping=stopping,
                        on_encoded=on_encoded,
                    )
        return computed

    async def resolve(
        self, candidates: Sequence[CallCandidate], account: Account
    ) -> tuple[list[str | None], list[Unresolved]]:
        """The text of each candidate, sent with it or registered before, and the candidates that have none.

        account: holds the registered texts.  Raises UnknownCandidates if none has a text, NotReady if that is because
        ids cannot be looked up, InputTooLarge if the registered texts are larger than a request may name, and what
        `Account.hold` raises.
        """
        texts = [candidate.text for candidate in candidates]
        ids = {index: each.id for index, each in enumerate(candidates) if each.text is None and each.id is not None}
        reason = "not registered, and sent without a text"
        if ids:
            registered: dict[str, str | None] = {}
            try:
                registered = await self._look_up(list(dict.fromkeys(ids.values())), account)
            except NotReady as error:
                if len(ids) == len(candidates):
                    raise
                reason = str(error)
            for index, name in ids.items():
                texts[index] = registered.get(name)
        missing = [Unresolved(index, name, reason) for index, name in ids.items() if texts[index] is None]
        if all(text is None for text in texts):
            raise UnknownCandidates(
                "no candidate can be ranked: all came without a text, and none of their ids is registered; send texts"
            )
        return texts, missing

    async def _look_up(self, ids: Sequence[str], account: Account) -> dict[str, str | None]:
        """The texts of distinct ids. Raises NotReady, and InputTooLarge before texts beyond the limit are read."""
        left_bytes = self.max_resolved_bytes

        def hold(size: int) -> None:
            nonlocal left_bytes
            left_bytes -= size
            if left_bytes < 0:
                raise InputTooLarge(
                    f"the texts of the ids are larger than {self.max_resolved_bytes} bytes; name fewer per request"
                )
            account.hold(size)

        texts: dict[str, str | None] = {}
        for start in range(0, len(ids), RESOLVED_AT_ONCE):
            part = ids[start : start + RESOLVED_AT_ONCE]
            texts |= zip(part, await self.store.get_many(part, hold), strict=True)
        return texts

    async def stored(self) -> None:
        """Returns when every computed representation is in Redis. Raises what `RepresentationSource.stored` raises."""
        for source in self._sources:
            await source.stored()

    @property
    def num_precomputing(self) -> int:
        """The number of scorers for which each text is encoded."""
        return len(self._sources)

    @property
    def _sources(self) -> list[RepresentationSource]:
        """The source of each scorer that precomputes, once even if several models share it."""
        stages = [stage for model in self.models.by_name.values() for stage in model.stages]
        sources = dict.fromkeys(stage.scorer.source for stage in stages)
        return [source for source in sources if isinstance(source, RepresentationSource)]

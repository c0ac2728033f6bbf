"""Sends a deeper search in place of a client's, and re-ranks the hits that come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bandrank.engine.memory import Account
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.fetching import OK, Fetched, Fetching
from bandrank.proxy.headers import Headers, replaced, to_client
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.outcomes import ENGINE_ERROR, Mark
from bandrank.proxy.reordering import Ranked, Reordering
from bandrank.proxy.rerank_options import RerankOptions, query_of_header
from bandrank.proxy.search_request import read_search


@dataclass(frozen=True)
class Reply:
    """What the client gets. marks: what became of its searches.  ranked: the rankings of those re-ranked."""

    marks: Sequence[Mark]
    status: int
    headers: Headers
    body: bytes
    ranked: Sequence[Ranked]

    @classmethod
    def of(
        cls, fetched: Fetched, marks: Sequence[Mark], body: bytes | None = None, ranked: Sequence[Ranked] = ()
    ) -> Self:
        """The engine's answer, with another body if one is given."""
        body = bytes(fetched.body) if body is None else body
        headers = replaced(to_client(fetched.status, fetched.headers), content_length=b"%d" % len(body))
        return cls(marks, fetched.status, headers, body, ranked)


class Searches:
    """Re-ranks searches that come alone."""

    def __init__(self, fetching: Fetching, reordering: Reordering, large_json: LargeJson) -> None:
        self._fetching, self._reordering, self._json = fetching, reordering, large_json

    async def run(self, client: Downstream, options: RerankOptions, account: Account) -> Reply:
        """Answers a search, re-ranked by these options.

        Raises SentAsItCame, ClientDisconnect and what `Fetching.fetch` raises.
        """
        query = query_of_header(client.headers)
        content = await self._fetching.content(client, account)
        search = await self._json.run(
            account.client, len(content), read_search, options, client.query_string, content, query
        )
        target = client.raw_path + b"?" + search.target_query
        deeper = await self._fetching.fetch(client, target, search.body, account)
        if deeper.status != OK:
            return Reply.of(deeper, [ENGINE_ERROR])
        found = await self._reordering.reordered(deeper.body, search, account)
        return Reply.of(deeper, [found.mark], found.body, [found.ranked] if found.ranked is not None else [])

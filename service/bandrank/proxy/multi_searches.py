"""Sends deeper searches in place of those of an `_msearch`, and re-ranks the hits of each."""

import asyncio
from collections.abc import Iterable, Sequence

from bandrank.api.parsing import TEXT_BYTES, num_values
from bandrank.engine.memory import Account, Memory
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.fetching import OK, UNREADABLE, VALUE_BYTES, Fetched, Fetching, check_status, hold, unreadable
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.multi_answer import MultiAnswer
from bandrank.proxy.multi_request import LINES_TYPE, Entry, indices_in, read_lines
from bandrank.proxy.outcomes import ENGINE_ERROR, PASSED, FailReason, Mark, SentAsItCame, Skipped, Unusable
from bandrank.proxy.reordering import Reordered, Reordering
from bandrank.proxy.rerank_options import RerankRules, query_of_header
from bandrank.proxy.search_request import SearchRequest, read_search
from bandrank.proxy.searches import Reply


class MultiSearches:
    """Re-ranks searches that come together. The failure of one does not affect the others."""

    def __init__(
        self, rules: RerankRules, fetching: Fetching, reordering: Reordering, large_json: LargeJson, memory: Memory
    ) -> None:
        self._rules, self._fetching, self._reordering = rules, fetching, reordering
        self._json, self._memory = large_json, memory

    async def run(self, client: Downstream, indices: Sequence[str], account: Account) -> Reply | None:
        """Answers each search of a request by its options; None if nobody asks to re-rank any.

        indices: of the path. Raises SentAsItCame, ClientDisconnect and what `Fetching.fetch` raises.
        """
        entries = await self._read(client, indices, account)
        if all(entry.asked is None for entry in entries):
            if all(entry.mark == PASSED for entry in entries):
                return None
            raise SentAsItCame(*[entry.mark for entry in entries])
        try:
            return await self._answered(client, entries, account)
        except Unusable as unusable:
            (mark,) = unusable.marks
            raise SentAsItCame(*[entry.mark if entry.asked is None else mark for entry in entries]) from unusable

    async def _read(self, client: Downstream, indices: Sequence[str], account: Account) -> list[Entry]:
        """The searches of a request. Raises Skipped, Unusable and ClientDisconnect."""
        query = query_of_header(client.headers)
        content = await self._fetching.content(client, account, LINES_TYPE)
        hold(account, TEXT_BYTES * len(content))  # for its lines and those that are sent in their place
        entries = []
        for head, body in read_lines(content):
            size = len(head) + len(body)
            searched = await self._json.run(account.client, size, indices_in, head, indices)
            try:
                options = self._rules.options_for(client.headers, searched)
                asked = None
                if options is not None:
                    asked = await self._json.run(
                        account.client, size, read_search, options, client.query_string, body, query, page_in_body=True
                    )
                entries.append(Entry(head, body, asked))
            except Skipped as skipped:
                entries.append(Entry(head, body, mark=skipped.marks[0]))
        return entries

    async def _answered(self, client: Downstream, entries: Sequence[Entry], account: Account) -> Reply:
        """Answers searches, some of which are to be re-ranked. Raises Unusable and what `Fetching.fetch` raises."""
        deeper = await self._fetch(client, [entry.deeper for entry in entries], account)
        if deeper.status != OK:
            return Reply.of(deeper, [entry.mark if entry.asked is None else ENGINE_ERROR for entry in entries])
        answers = await self._split(deeper, len(entries), account)
        done: dict[int, Reordered] = {}
        failed: dict[int, Mark] = {}
        begun = asyncio.get_running_loop().time()
        for index, entry in enumerate(entries):  # one at a time: while one waits, the next would be refused
            if entry.asked is not None:
                try:
                    done[index] = await self._reordered(answers, index, entry.asked, begun, account)
                except Unusable as unusable:
                    (failed[index],) = unusable.marks
        if failed:
            own = await self._fetch(client, [entries[index].own for index in failed], account)
            if own.status != OK:
                raise Unusable(FailReason.ENGINE_FAILED)
            theirs = await self._split(own, len(failed), account)
            for place, (index, mark) in enumerate(failed.items()):
                done[index] = Reordered(mark if theirs.status(place) == OK else ENGINE_ERROR, theirs.body(place))
        marks = [done[index].mark if index in done else entry.mark for index, entry in enumerate(entries)]
        body = answers.write({index: each.body for index, each in done.items()})
        return Reply.of(deeper, marks, body, [each.ranked for each in done.values() if each.ranked is not None])

    async def _reordered(
        self, answers: MultiAnswer, index: int, search: SearchRequest, begun: float, account: Account
    ) -> Reordered:
        """The answer to one of the searches. begun: when their budgets began to run. Raises Unusable."""
        check_status(answers.status(index))
        if answers.status(index) != OK:
            return Reordered(ENGINE_ERROR, answers.body(index))
        spent_s = asyncio.get_running_loop().time() - begun
        return await self._reordering.reordered(answers.body(index), search, account, spent_s=spent_s)

    async def _fetch(self, client: Downstream, searches: Iterable[bytes], account: Account) -> Fetched:
        """The engine's answer to some searches. Raises what `Fetching.fetch` raises."""
        return await self._fetching.fetch(client, client.target, b"".join(searches), account)

    async def _split(self, fetched: Fetched, num_searches: int, account: Account) -> MultiAnswer:
        """An answer whose parts can be read and replaced. Raises Unusable."""
        size = len(fetched.body)
        hold(account, TEXT_BYTES * size)  # for the parts, and the answer that is written
        with self._memory.account(account.client) as while_read:
            try:
                values = await self._json.run(account.client, size, num_values, fetched.body)
                hold(while_read, size + VALUE_BYTES * values)
                return await self._json.run(account.client, size, MultiAnswer, fetched.body, num_searches)
            except UNREADABLE as error:
                raise unreadable(error) from None

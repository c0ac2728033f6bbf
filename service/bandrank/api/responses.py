"""Answers that are sent in parts, no faster than the client reads them."""

from collections.abc import Callable, Mapping

from fastapi import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

PART_BYTES = 256 << 10
ANSWER_BYTES = 3  # memory for each byte of texts: the JSON, a copy while it is made, and what waits to be read


def json_of(response: BaseModel) -> bytes:
    """The JSON of a response, without the fields that are None.

    Like `model_dump_json`, but in bytes: a string would be one more copy of an answer that may be large.
    """
    return response.__pydantic_serializer__.to_json(response, exclude_none=True, by_alias=True)


class JsonInParts(Response):
    """A response of JSON that is already written.

    The server buffers what a client has not read yet. So it is given a large body part by part, and the request, with
    the memory that it holds, lasts until the client has taken all but the last part, or has hung up.  when_sent: called
    then, in either case.
    """

    media_type = "application/json"

    def __init__(
        self,
        content: bytes | memoryview,
        headers: Mapping[str, str] | None = None,
        *,
        when_sent: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(content, headers=headers)
        self._when_sent = when_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, max(1, len(body)), PART_BYTES):
            part = bytes(body[start : start + PART_BYTES])
            more = start + PART_BYTES < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})
        self._when_sent()

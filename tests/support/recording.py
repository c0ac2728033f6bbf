"""Stand-ins for servers that cannot run here: they keep a record of the calls and answer as documented."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Json = Any  # what json.loads returns


@dataclass(frozen=True)
class RecordedCall:
    """A request as it arrived. body: its JSON value, a list of the values of its lines, or None."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]
    body: Json


class Answer(Exception):
    """Ends a call with a status and a JSON body."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


@contextmanager
def serving_calls(answer: Callable[[RecordedCall], Json]) -> Iterator[str]:
    """Runs a server and yields its URL. It sends what `answer` returns, with status 200, or raises as an Answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # buffered, so that an answer leaves as one packet, without delay

        def _handle(self) -> None:
            address = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            if self.headers.get("Content-Type") == "application/x-ndjson":
                assert text.endswith("\n")
                body = [json.loads(line) for line in text.splitlines()]
            else:
                body = json.loads(text) if text else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = RecordedCall(self.command, address.path, dict(parse_qsl(address.query)), headers, body)
            try:
                status, content = 200, answer(call)
            except Answer as ended:
                status, content = ended.status, ended.body
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 -- the names that the base class looks for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class RecordingServer:
    """A stand-in for a server, whose subclass answers.

    calls: all calls.  writes: the calls that changed something, which the subclass adds.  interrupt: runs before each
    call is answered; an Answer that it raises is sent instead.
    """

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self.writes: list[RecordedCall] = []
        self.interrupt: Callable[[RecordedCall], None] = lambda _: None

    def answer(self, call: RecordedCall) -> Json:
        """The JSON of the answer to a call. Raises Answer for any status but 200."""
        raise NotImplementedError

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Runs the server and yields its URL."""

        def record(call: RecordedCall) -> Json:
            self.calls.append(call)
            self.interrupt(call)
            return self.answer(call)

        with serving_calls(record) as url:
            yield url

    def interrupt_after(self, num_writes: int) -> None:
        """Makes one call fail, the first after this many writes."""

        def end(_: RecordedCall) -> None:
            if len(self.writes) == num_writes:
                self.interrupt = lambda _: None
                raise Answer(500, {"error": "interrupted"})

        self.interrupt = end

"""Answers requests that offer another protocol in the one that they came in.

Some clients offer HTTP/2 with their first request (Java's does). A server may ignore the offer (RFC 9110, 7.8), but the
parser takes what follows the headers for the other protocol, so the request would be answered as if it had no body.
"""

import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)


class WithoutUpgrades(HttpToolsProtocol):
    """A connection on which a request with an offer is read again without it; a tunnel is refused with 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def read_again(self, rest: bytes) -> None:
        """Reads the headers so far again, without the offer, and what follows them."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("nothing is tunnelled")
            return
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *headers, b"", rest]))


class _Parser(httptools.HttpRequestParser):
    """A parser that tells its protocol about an offer."""

    def __init__(self, protocol: WithoutUpgrades) -> None:
        super().__init__(protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._reader = protocol

    def feed_data(self, data: Any) -> None:  # of any type that has bytes
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._reader.read_again(bytes(data)[offer.args[0] :])
        except httptools.HttpParserError:  # any client could make uvicorn log a warning
            log.debug("a request is not valid HTTP", exc_info=True)
            self._reader.send_400_response("Invalid HTTP request received.")

"""JSON over HTTP to a search engine, with bounded waits and errors that say what to do. Standard library alone."""

import argparse
import base64
import http.client
import json
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

POLL_S = 0.5
TIMEOUT_S = 60.0  # of a call; the slowest ones load an index
Json = Any  # what json.loads returns


class SetUpError(Exception):
    """The set-up cannot go on; the message says why, and what to do about it."""


class Refused(SetUpError):
    """The engine answered with a status that was not expected. body: its JSON, or its text."""

    def __init__(self, message: str, status: int, body: Json) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Unreachable(SetUpError):
    """Nothing answers at the engine's address."""


@dataclass(frozen=True)
class Client:
    """An engine at a URL, with the value of the Authorization header, if there is one."""

    url: str
    authorization: str | None = None

    def call(self, method: str, path: str, body: Json = None, *, expected: Sequence[int] = (200, 201)) -> Json:
        """The JSON of the answer. body: JSON, or a list of JSON values to send as lines.

        Raises Unreachable, and Refused for a status that is not among the expected ones.
        """
        status, answer = self._exchange(method, path, body)
        if status in expected:
            return answer
        if status in (401, 403):
            raise Refused(f"{self.url} refuses the login ({status}): its password is another one", status, answer)
        raise Refused(f"{method} {path} was answered with {status}: {_reason(answer)}", status, answer)

    def get(self, path: str) -> Json | None:
        """The JSON at a path, or None if there is none."""
        try:
            return self.call("GET", path)
        except Refused as refusal:
            if refusal.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def wait_until(self, what: str, holds: Callable[[], bool], *, deadline: float) -> None:
        """Polls until `holds` returns True; an engine that does not answer yet, or says 503, is waited for as well.

        deadline: of time.monotonic().  Raises SetUpError if it passes, and at once what waiting will not mend.
        """
        last = "it does not hold"
        while True:
            try:
                if holds():
                    return
            except Unreachable as error:
                last = str(error)
            except Refused as refusal:
                if refusal.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                last = str(refusal)
            if time.monotonic() > deadline:
                raise SetUpError(f"waited in vain until {what}: {last}")
            time.sleep(POLL_S)

    def _exchange(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        address = urlsplit(self.url)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=TIMEOUT_S)
        headers = {"Accept": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        if isinstance(body, list):
            content = "".join(json.dumps(line) + "\n" for line in body).encode()
            headers["Content-Type"] = "application/x-ndjson"
        else:
            content = b"" if body is None else json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, address.path.rstrip("/") + path, content or None, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except ssl.SSLCertVerificationError as error:
            raise SetUpError(f"{self.url} is not trusted, {error.verify_message}: set SSL_CERT_FILE") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"cannot reach {self.url}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(text) if text else None
        except ValueError:
            return response.status, text


def _reason(answer: Json) -> str:
    """What an error's body says, in its own words and in one line."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("reason") or error
    return " ".join(str(error).split())[:500]


def basic(user: str, password_file: Path) -> str:
    """The Authorization header of a user whose password is in a file. Raises SetUpError if that cannot be read."""
    return "Basic " + base64.b64encode(f"{user}:{secret(password_file)}".encode()).decode()


def secret(file: Path) -> str:
    """What a file holds, without the white space around it. Raises SetUpError if it cannot be read or holds nothing."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SetUpError(f"cannot read {file}: {error.strerror}") from error
    if not text:
        raise SetUpError(f"{file} is empty")
    return text


def command_line(description: str, *, url: str, user: str = "") -> argparse.ArgumentParser:
    """The options of a set-up script.  user: who logs in; empty if the engine takes a key and knows its re-ranker."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", default=url, help="of the search engine")
    parser.add_argument("--password-file", type=Path, help="the user's password, or an API key; without it no login")
    parser.add_argument("--index", default="sample", help="the index to make and fill")
    parser.add_argument("--wait-s", type=float, default=300.0, help="seconds until the search engine must be ready")
    if user:
        parser.add_argument("--user", default=user, help="who may change it")
        parser.add_argument("--reranker", default="http://bandrank:8000", help="bandrank, as the engine reaches it")
        parser.add_argument("--reranker-key-file", type=Path, help="an API key of bandrank, if it asks for one")
    return parser


def run(set_up: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> int:
    """Runs a set-up and returns the exit status: 0, or 1 with a sentence on standard error."""
    try:
        set_up(parser.parse_args())
    except SetUpError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    return 0


def done(what: str, how: str) -> None:
    """Tells what became of one thing."""
    print(f"{what}: {how}", flush=True)

"""Runs the real application with its lifespan in this process, with a client, or with clients that hang up."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import Message, Scope
from support.server import Scrape
from support.serving import files_of

from bandrank.api.app import create_app
from bandrank.api.service import Service
from bandrank.models.scorer import Scorer
from bandrank.serving import LoadedScorers, assemble, load_models
from bandrank.settings import Settings

# The keys of an error's body, whose values are all strings: each known client reads one of them.
ERROR_KEYS = {"message", "detail", "error", "error_type"}


@dataclass(frozen=True)
class RunningApp:
    """An application, its service and a client of it."""

    app: FastAPI
    service: Service
    client: httpx.AsyncClient

    async def rerank(self, body: Any) -> httpx.Response:
        return await self.client.post("/rerank", json=body)

    async def scrape(self) -> Scrape:
        return Scrape((await self.client.get("/metrics")).text)


@asynccontextmanager
async def running_app(
    scorer: Scorer,
    *,
    settings: Settings | None = None,
    name: str = "tiny",
    fast: Scorer | None = None,
    shadow: Scorer | None = None,
    started: bool = True,
    on_death: Callable[[], None] = lambda: None,
) -> AsyncIterator[RunningApp]:
    """Runs an application that serves `scorer` on the CPU.

    fast: the scorer of a first stage.  shadow: scores the requests that the settings sample, under the name "shadow".
    started: whether the lifespan is entered here; otherwise the test does so.
    """
    settings = settings or Settings(device="cpu")
    main = files_of(scorer, fast=fast, name=name, depth=settings.cascade_depth)
    files = [replace(main, first_stage_weight=settings.first_stage_weight, pooled=settings.pooled)]
    if shadow is not None:
        files.append(replace(files_of(shadow, name="shadow"), served=False, shadow=True))
    service = Service(assemble(files, settings, on_death=on_death), settings)
    app = create_app(service)
    async with AsyncExitStack() as at_end:
        if started:
            await at_end.enter_async_context(app.router.lifespan_context(app))
        else:
            at_end.push_async_callback(service.close)
        yield RunningApp(app, service, await at_end.enter_async_context(client_to(app)))


def client_to(app: FastAPI) -> httpx.AsyncClient:
    """A client of an application, which gets 500 for what the application raises."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://bandrank")


@asynccontextmanager
async def client_of(settings: Settings, files: Sequence[LoadedScorers] = ()) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service that `bandrank serve` starts with these settings, or of one with these models."""
    app = create_app(Service(assemble(files or load_models(settings), settings), settings))
    async with app.router.lifespan_context(app), client_to(app) as client:
        yield client


async def ask_and_hang_up(
    app: FastAPI,
    messages: list[Message],
    *,
    hung_up: Callable[[], Any],
    path: str = "/rerank",
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> list[Message]:
    """Sends `messages` to `path`, hangs up once `hung_up` returns, and returns the messages of the answer."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers],
        "server": ("bandrank", 80),
        "client": ("127.0.0.1", 1),
    }
    left, sent = list(messages), []

    async def receive() -> Message:
        if left:
            return left.pop(0)
        await hung_up()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def assert_openai_error(response: httpx.Response, status: int, error_type: str) -> str:
    """Checks the status and the body of an error for OpenAI's clients; returns its message."""
    assert response.status_code == status, response.text[:500]
    body = response.json()
    message: str = body["message"]
    assert body == {
        "message": message,
        "detail": message,
        "error": {"message": message, "type": error_type, "param": None, "code": None},
        "error_type": error_type,
    }
    return message


def assert_error(response: httpx.Response, status: int, error_type: str) -> str:
    """Checks the status and the flat body of an error, which has two more fields for DashScope; returns its message.

    Together's clients read what OpenAI's do.
    """
    if response.url.path.startswith("/together/"):
        return assert_openai_error(response, status, error_type)
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) - {"code", "request_id"} == ERROR_KEYS
    assert all(isinstance(value, str) and value for value in body.values())
    assert body["error_type"] == error_type
    message: str = body["message"]
    return message

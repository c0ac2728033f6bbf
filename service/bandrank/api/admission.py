"""Decides who sent a request, and whether they may."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers

from bandrank.api.addresses import client_at, is_loopback
from bandrank.api.dialects import DIALECTS
from bandrank.api.error_responses import path_of
from bandrank.api.keys import Key, KeyFile, Scope
from bandrank.engine.clients import Client
from bandrank.engine.memory import Account, Memory
from bandrank.errors import BandrankError, Forbidden, Overloaded, Unauthorized, whole_seconds
from bandrank.metrics import Metrics
from bandrank.settings import Settings, variable

REFUSALS = (401, 403, 429)  # the statuses with which a client may be turned away
REASONS: dict[type[BandrankError], str] = {Unauthorized: "unauthorized", Forbidden: "forbidden", Overloaded: "rate"}

KEY_HEADERS = ("X-API-Key", "api-key")
FORWARDED = ("forwarded", "via", "x-forwarded-", "x-real-ip")  # how headers begin that proxies add

# These only describe the API. `_presented` reads the keys of a request, and several different ones are refused.
SECURITY_SCHEMES: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of this service, if it has keys."},
    **{name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
}
SECURED: dict[str, Any] = {"security": [{name: []} for name in SECURITY_SCHEMES]}


@cache  # so that a scope has one dependency, which is called once for a request
def admitted(scope: Scope) -> Callable[..., Awaitable[Client]]:
    """A dependency of endpoints: the client of a request, if it may do what the scope says.

    It runs before the body is read; SECURED describes it. Raises Unauthorized, Forbidden and Overloaded.
    """

    async def client(request: Request) -> Client:
        admission: Admission = request.app.state.service.admission
        return admission.admit(request, scope)

    return client


def account_for(scope: Scope) -> Callable[..., AsyncIterator[Account]]:
    """A dependency of endpoints that take bodies: the account of an admitted request, until its answer is sent."""

    async def account(request: Request, client: Annotated[Client, Depends(admitted(scope))]) -> AsyncIterator[Account]:
        memory: Memory = request.app.state.service.memory
        with memory.account(client) as account:
            yield account

    return account


RankingAccount = Annotated[Account, Depends(account_for(Scope.RANK))]


class Admission:
    """Who may do what: by the keys in a file or, without one, by address."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Raises BadSetting for a file of keys that cannot be used."""
        self.keys = KeyFile(settings.keys) if settings.keys else None
        self._register_from = settings.register_from
        self._refused = metrics.refused_requests

    def admit(self, request: Request, scope: Scope) -> Client:
        """The client of a request. Raises Unauthorized, Forbidden, and Overloaded if a key exceeds its rate."""
        try:
            return self._of_address(request, scope) if self.keys is None else self._of_key(self.keys, request, scope)
        except (Unauthorized, Forbidden, Overloaded) as refusal:
            kind = "ranking" if path_of(request.scope) in DIALECTS else "other"
            self._refused.labels(REASONS[type(refusal)], kind).inc()
            raise

    def _of_key(self, keys: KeyFile, request: Request, scope: Scope) -> Client:
        presented = _presented(request.headers)
        if len(presented) != 1:
            raise Unauthorized("send one key, as `Authorization: Bearer KEY`")
        key = keys.find(presented.pop())
        if key is None:
            raise Unauthorized("there is no such key; ask the operator for one")
        if scope not in key.table.scopes:
            raise Forbidden(f"this key lacks the scope {scope.value!r}; ask the operator for one that has it")
        _check_rate(key)
        return key.client

    def _of_address(self, request: Request, scope: Scope) -> Client:
        host = request.client.host if request.client is not None else ""
        if scope is Scope.REGISTER:
            self._check_registering(request.headers, host)
        return client_at(request.client)

    def _check_registering(self, headers: Headers, host: str) -> None:
        # A page can make the browser send requests to this machine as if to the page's own site, if its name resolves
        # to the loopback address once the page is loaded (DNS rebinding). The address says nothing about the page, and
        # browsers ask no permission for requests to the page's own site, but they do add these headers.
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise Forbidden(f"no web page may register or delete candidates without a key; set {variable('keys')}")
        # A forwarded request comes from elsewhere, even if the header claims that it comes from loopback.
        forwarded = any(name.startswith(FORWARDED) for name in headers)
        if self._register_from == "loopback" and (forwarded or not is_loopback(host)):
            raise Forbidden(
                "candidates can be registered and deleted from the service's own machine alone; for others set "
                f"{variable('keys')}, or {variable('register_from')} to anywhere"
            )


def _presented(headers: Headers) -> set[bytes]:
    """The distinct keys in a request; an `Authorization` with another scheme does not count."""
    bearer = (value.partition(" ") for value in headers.getlist("authorization"))
    keys = [key for scheme, _, key in bearer if scheme.lower() == "bearer"]
    keys += [key for name in KEY_HEADERS for key in headers.getlist(name)]
    return {key.strip().encode("latin-1") for key in keys if key.strip()}


def _check_rate(key: Key) -> None:
    """Raises Overloaded if the key exceeds its rate."""
    if key.bucket is not None and (wait_s := key.bucket.take()) > 0:
        raise Overloaded(
            f"this key may send {key.bucket.per_s:g} requests a second; try again in {whole_seconds(wait_s)} s",
            retry_after_s=wait_s,
        )

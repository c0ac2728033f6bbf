"""The commands that load models: serve, proxy, check and precompute."""

import asyncio
import gc
import logging
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import uvicorn

from bandrank import __version__, logs
from bandrank.api.app import create_app
from bandrank.api.certificate import served_certificate
from bandrank.api.connections import ConnectionLimits, Connections
from bandrank.api.draining import DrainingServer
from bandrank.api.hardening import hardening
from bandrank.api.keys import NO_KEYS, KeyFile
from bandrank.api.service import Service
from bandrank.api.tls import over_tls
from bandrank.cpus import limit_threads
from bandrank.engine.precompute import Precomputed
from bandrank.engine.precompute import precompute as precompute_corpus
from bandrank.errors import BadSetting, BandrankError, InvalidInput
from bandrank.models.awake import keep_awake
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.preflight import preflight, preflight_corpus, preflight_models
from bandrank.proxy.app import create_proxy
from bandrank.serving import LoadedScorers, assemble, load_models
from bandrank.settings import Settings, explain
from bandrank.stops import STOPS

log = logging.getLogger("bandrank")

KEEP_ALIVE_S = 75  # longer than the 60 s after which proxies drop an idle connection, so that they do it first
# The longest that a thread in Python code keeps others waiting. A small request takes its turn some ten times, in the
# event loop and in threads: at Python's 5 ms, it waited a second beside many large ones.
SWITCH_S = 0.001
PASSED_THROUGH = {"headers": [], "date_header": False}  # a proxy's answers have the headers of the search engine


def run(command: str, settings: Settings, corpus: str | None) -> int:
    """Runs a command with settings; returns the exit code, as `main` does.  corpus: the file of `precompute`."""
    logs.configure(settings.log_level, settings.log_format, access_log=settings.access_log)
    try:
        limit_threads()
        if command in {"serve", "proxy"}:
            preflight(settings, proxy=command == "proxy")
        if corpus is not None:
            preflight_corpus(Path(corpus), settings)
            settings = settings.model_copy(update={"shadow_model": ""})  # nothing is precomputed for it
        preflight_models(settings)
        loaded = load_models(settings)
        if corpus is not None:
            return precompute(Path(corpus), loaded, settings)
        return check(loaded, settings) if command == "check" else serve(loaded, settings, proxy=command == "proxy")
    except (BadSetting, BadCheckpoint) as error:
        logs.tell_why(explain(error) if isinstance(error, BadSetting) else str(error), settings.log_format)
        return 2
    except Exception:
        log.critical("%s failed", command, exc_info=True)
        return 1


def serve(loaded: Sequence[LoadedScorers], settings: Settings, *, proxy: bool = False) -> int:
    """Serves until SIGTERM or SIGINT, then answers the admitted requests; returns 1 if it failed to start or the
    scoring thread died.

    proxy: whether it is a search proxy, which goes on without its scoring thread.  Raises BadSetting.
    """
    died = False
    tls = served_certificate(settings)
    server: uvicorn.Server | None = None

    def on_death() -> None:
        nonlocal died
        died = True
        if server is not None and not proxy:
            server.should_exit = True

    serving = assemble(loaded, settings, on_death=on_death)
    if asleep := keep_awake(settings.awake_ms, serving.models.engine.device):
        log.info("processors may sleep between batches: %s", asleep)
    limits, metrics = ConnectionLimits(settings.max_connections), serving.models.engine.metrics
    connections = Connections(limits, metrics, outgoing=settings.proxy_connections if proxy else 0)
    service = Service(serving, settings)
    longest_s = max(settings.request_timeout_s, settings.proxy_timeout_s if proxy else 0)  # of a request
    config = uvicorn.Config(
        create_proxy(service, settings) if proxy else create_app(service),
        http=connections.protocol() if tls is None else over_tls(connections, tls),  # type: ignore[arg-type]  # they do
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(longest_s) + 1,  # a client that hangs must not delay the stop
        **(hardening(settings) | (PASSED_THROUGH if proxy else {})),
    )

    def drain() -> None:
        service.drain()
        connections.draining = True

    scheme = "http" if tls is None else "https"
    server = DrainingServer(config, scheme=scheme, drain_s=settings.drain_s, on_drain=drain, on_close=service.stop)
    server.should_exit = died and not proxy
    what = f"{settings.proxy_upstream}, re-ranked by" if proxy else ""
    names = ", ".join(serving.models.by_name)
    log.info("starting %s", f"{what} {names}".lstrip())
    # Objects loaded by now live to the end; a collection that walks them all would delay requests by 0.2 s.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    for number in STOPS:  # uvicorn handles them while it runs, and raises them again when it has ended
        signal.signal(number, server.handle_exit)
    try:
        server.run()
    except SystemExit:  # raised by uvicorn if it could not start; it has logged why
        return 1
    for number in STOPS:  # a further one would kill the interpreter in its last moments
        signal.signal(number, signal.SIG_IGN)
    return 1 if died or not server.started else 0


def check(loaded: Sequence[LoadedScorers], settings: Settings) -> int:
    """Prints what would be served, asks Redis, and scores a request with each model; returns 1 if that fails."""
    tls = served_certificate(settings)
    hardening(settings)
    keys = KeyFile(settings.keys).names if settings.keys else None
    serving = assemble(loaded, settings)
    models = dict(serving.models.by_name)
    if (shadow := serving.shadow) is not None:
        models[shadow.name] = shadow
    # Several models may have stages of the same name.
    stages = {
        f"{name} {stage.role.name}" if len(models) > 1 else stage.role.name: stage.scorer
        for name, model in models.items()
        for stage in model.stages
    }
    tell("bandrank", __version__)
    tell("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    tell("models", ", ".join(serving.models.by_name))
    if shadow is not None:
        tell("shadow", f"{shadow.name}, of {settings.shadow_share:.3g} of the requests")
    tell("keys", "none" if keys is None else ", ".join(keys) or NO_KEYS)
    tell("TLS", "none" if tls is None else settings.tls_certificate)
    tell("device", describe(serving.models.engine.device))
    asleep = keep_awake(settings.awake_ms, serving.models.engine.device)
    tell("between batches", f"processors may sleep: {asleep}" if asleep else f"awake for {settings.awake_ms:g} ms")
    for name, scorer in stages.items():
        tell(f"{name} model", f"{scorer.name} ({scorer.prepared.scorer.architecture})")
        for fact, value in scorer.tokenizer.facts().items():
            tell(f"{name} {fact}", value)
        tell(f"{name} precision", scorer.prepared.precision)
        tell(f"{name} attention", scorer.prepared.attention)

    async def test() -> None:
        try:
            if (redis := serving.models.engine.redis) is not None:
                await redis.check()
                tell("redis", "answers")
            for model in models.values():
                await model.self_test()
        finally:
            await serving.models.close()

    try:
        asyncio.run(test())
    except Exception as error:  # noqa: BLE001 - any error is what the check looks for
        tell("self-test", f"failed: {error}")
        return 1
    for name, scorer in stages.items():  # a capture may have failed
        reason = scorer.prepared.why_no_graphs()
        tell(f"{name} CUDA graphs", "used" if reason is None else f"not used: {reason}")
    tell("self-test", "passed")
    return 0


def tell(name: str, fact: str) -> None:
    """Prints a line of a check."""
    print(f"{name:20} {fact}")


def describe(device: torch.device) -> str:
    """The name of a device and, for a GPU, the card's name, compute capability and memory."""
    if device.type != "cuda":
        return str(device)
    card = torch.cuda.get_device_properties(device)
    return f"{device} ({card.name}, sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB)"


def precompute(path: Path, loaded: Sequence[LoadedScorers], settings: Settings) -> int:
    """Fills Redis from a file; returns 1 if it was interrupted, after which it can be run again. Raises BadSetting."""
    if not any(model.scorer.precomputes for each in loaded for model in (each.fast, each.main) if model is not None):
        raise BadSetting("fast_model", f"must be set: {loaded[0].main.name} does not precompute")

    async def run() -> Precomputed:
        serving = assemble(loaded, settings)
        try:
            if (redis := serving.models.engine.redis) is not None:
                await redis.check()  # a write that fails does not say why
            return await precompute_corpus(path, serving.registry)
        finally:
            await serving.models.close()

    try:
        done = asyncio.run(run())
    except (BandrankError, OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        again = "correct the file and run it again" if isinstance(error, InvalidInput) else "run it again to go on"
        logs.tell_why(f"{path}: {reason}; what is stored is kept, {again}", settings.log_format)
        return 1
    print(f"{done.registered} candidates registered; {done.encoded} encoded, {done.cached} were in the cache")
    return 0

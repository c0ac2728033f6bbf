"""`bandrank serve | check | precompute | version`."""

import asyncio
import gc
import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import uvicorn

from bandrank import __version__
from bandrank.api.app import create_app
from bandrank.api.service import Service
from bandrank.engine.precompute import Precomputed
from bandrank.engine.precompute import precompute as precompute_corpus
from bandrank.engine.ranking import Stage
from bandrank.errors import BadSetting, BandrankError
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.prepared import PreparedScorer
from bandrank.serving import ModelFiles, Serving, assemble, load_models
from bandrank.settings import Settings, explain

log = logging.getLogger("bandrank")

USAGE = """usage: bandrank COMMAND [settings as flags: --model M --port P ...]

  serve            answers POST /rerank; `bandrank serve --help` lists the settings
  check            prints models, device, what computes attention, whether CUDA graphs are used; scores one request, and
                   exits 0 if all is well
  precompute FILE  registers and encodes the candidates of a JSON-lines file (id, text; .gz is unpacked), into Redis
  version          prints the version"""

KEEP_ALIVE_S = 75  # longer than the 60 s after which proxies drop an idle connection, so that they do it first


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, 1 if the service failed, 2 for a command or setting that cannot be used."""
    # Large buffers come and go with every layer; without huge pages a fifth of the CPU's time goes into mapping them.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "version":
        print(__version__)  # noqa: T201 - what was asked for
        return 0
    if command == "precompute" and (not rest or rest[0].startswith("-")):
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    if command not in {"serve", "check", "precompute"}:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 0 if command in {"-h", "--help", "help"} else 2
    try:
        settings = Settings.read(rest[1:] if command == "precompute" else rest)
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        files = load_models(settings)
        if command == "precompute":
            return precompute(Path(rest[0]), files, settings)
        return serve(files, settings) if command == "serve" else check(files, settings)
    except BadSetting as error:
        print(f"bandrank: {explain(error)}", file=sys.stderr)  # noqa: T201
    except BadCheckpoint as error:
        print(f"bandrank: {error}", file=sys.stderr)  # noqa: T201
    return 2


def serve(files: Sequence[ModelFiles], settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT, finishes what was admitted, returns 0; 1 if the scoring thread dies."""
    died = False

    def on_death() -> None:
        nonlocal died
        died = True
        server.should_exit = True

    serving = assemble(files, settings, on_death=on_death)
    config = uvicorn.Config(
        create_app(Service(serving, settings)),
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
    log.info("serving %s on http://%s:%d", ", ".join(serving.models.by_name), settings.host, settings.port)
    # What is loaded by now stays to the end; a collection that walks all of it holds every request up for 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not start; it has logged why
        return 1
    return 1 if died or not server.started else 0


def check(files: Sequence[ModelFiles], settings: Settings) -> int:
    """Prints what would be served and scores one request with each model."""
    serving = assemble(files, settings)
    facts = {
        "bandrank": __version__,
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "models": ", ".join(serving.models.by_name),
        "device": describe(serving.engine.device),
        "dtype": ", ".join(sorted({str(model.dtype) for model in serving.models.by_name.values()})),
    }
    stages = _stages(serving)
    for name, stage in stages.items():
        prepared = stage.scorer.prepared
        facts[f"{name} model"] = f"{stage.scorer.name} ({prepared.scorer.architecture})"
        facts[f"{name} attention"] = attention_of(prepared)
    for name, fact in facts.items():
        print(f"{name:20} {fact}")  # noqa: T201

    async def test() -> None:
        try:
            for model in serving.models.by_name.values():
                await model.self_test()
        finally:
            await serving.engine.close()

    try:
        asyncio.run(test())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        print(f"{'self-test':20} failed: {error}")  # noqa: T201
        return 1
    for name, stage in stages.items():  # only now has one been captured
        print(f"{f'{name} CUDA graphs':20} {graphs_of(stage.scorer.prepared)}")  # noqa: T201
    print(f"{'self-test':20} passed")  # noqa: T201
    return 0


def _stages(serving: Serving) -> dict[str, Stage]:
    """The stages by name; behind their model's name, if several are served."""
    models = serving.models.by_name
    return {
        f"{name} {stage.role.name}" if len(models) > 1 else stage.role.name: stage
        for name, model in models.items()
        for stage in model.stages
    }


def describe(device: torch.device) -> str:
    """With the card's name, compute capability and memory if it is a GPU."""
    if device.type != "cuda":
        return str(device)
    card = torch.cuda.get_device_properties(device)
    return f"{device} ({card.name}, sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB)"


def attention_of(scorer: PreparedScorer) -> str:
    """What computes the attention of its encoder, and why."""
    reason = scorer.why_no_kernels
    return "CUDA kernels" if reason is None else f"plain torch: {reason}"


def graphs_of(scorer: PreparedScorer) -> str:
    """Whether its batches are replayed from CUDA graphs, and why not."""
    reason = scorer.why_no_graphs()
    return "used" if reason is None else f"not used: {reason}"


def precompute(path: Path, files: Sequence[ModelFiles], settings: Settings) -> int:
    """Fills Redis from a file; 1 if it could not be finished, and running it again goes on. Raises BadSetting."""
    if not settings.redis_url:
        raise BadSetting("redis_url", "must be set: what is precomputed has to outlive this process")
    if not any(model.scorer.precomputes for each in files for model in (each.fast, each.main) if model is not None):
        raise BadSetting("fast_model", f"must be set: {files[0].main.name} does not precompute")
    if not path.is_file():
        raise BadSetting(str(path), "is no file")

    async def run() -> Precomputed:
        serving = assemble(files, settings)
        try:
            return await precompute_corpus(path, serving.registry)
        finally:
            await serving.engine.close()

    try:
        done = asyncio.run(run())
    except (BandrankError, OSError, EOFError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        print(f"bandrank: {path}: {reason}; what is done is kept, run it again to go on", file=sys.stderr)  # noqa: T201
        return 1
    print(f"{done.registered} candidates registered; {done.encoded} encoded, {done.cached} were in the cache")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

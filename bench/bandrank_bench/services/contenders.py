"""The services to compare: how each is started and asked, and in which precision and pattern it has the checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from bandrank.dtypes import DtypeName
from bandrank_bench.infinity import MODEL, Configuration, running_infinity
from bandrank_bench.service import Service, running_service
from bandrank_bench.systems import Pattern, Precision

# The others refuse nobody, so neither does bandrank here: 64 clients may wait as long as it takes.
PATIENT = {"PATIENCE": "1000", "REQUEST_TIMEOUT_S": "300"}
PRECISIONS: dict[DtypeName, Precision] = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}


class Start(Protocol):
    """Runs a service until the end of the block, with its output in a file."""

    def __call__(self, log: Path) -> AbstractContextManager[Service]: ...


@dataclass(frozen=True, eq=False)
class Contender:
    """A service. texts_field: the name of the passages in a body.  fields: further fields of a body."""

    name: str
    maker: str
    precision: Precision | None
    pattern: Pattern
    configured: str
    start: Start
    texts_field: str = "candidates"
    fields: Mapping[str, Any] = field(default_factory=dict)


def ours(checkpoint: Path, pattern: Pattern, dtype: DtypeName) -> Contender:
    """Bandrank with this pattern and precision."""
    settings = {"MODEL": str(checkpoint), "DEVICE": "cpu", "DTYPE": dtype, **PATIENT}
    configured = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "MODEL")

    def start(log: Path) -> AbstractContextManager[Service]:
        return running_service(settings, log)

    name = f"bandrank {pattern} {PRECISIONS[dtype]}"
    return Contender(name, "bandrank", PRECISIONS[dtype], pattern, configured, start, fields={"raw_scores": True})


def infinity(program: Path, checkpoint: Path, how: Configuration) -> Contender:
    """One configuration of infinity. checkpoint: for the engine optimum, with an ONNX file in the dtype."""

    def start(log: Path) -> AbstractContextManager[Service]:
        return running_infinity(program, checkpoint, how, log)

    precision = PRECISIONS[how.dtype]
    name = f"infinity {how.engine} {precision}, batches of {how.batch_size}"
    configured = (
        f"engine {how.engine}, dtype {how.dtype}, batch-size {how.batch_size}, no BetterTransformer, no compile, "
        "ONNX files as they were exported"
    )
    fields = {"model": MODEL, "raw_scores": True}
    return Contender(name, "infinity", precision, "full", configured, start, "documents", fields)


def tei(url: str) -> Contender:
    """A running text-embeddings-inference, with whatever weights it was started with.

    Raises ValueError for an address that is not http://host:port.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"expected http://host:port, got {url!r}")
    service = Service(parts.port or 80, None, parts.hostname)

    @contextmanager
    def start(log: Path) -> Iterator[Service]:
        log.touch()
        yield service

    return Contender("TEI", "TEI", None, "full", f"as found at {url}", start, "texts", {"raw_scores": True})


def fastest_of_each_precision(tried: Mapping[Contender, float]) -> list[Contender]:
    """The fastest contender of each precision, of those that could be started."""
    ascending = sorted((one for one in tried if tried[one]), key=lambda one: tried[one])
    return list({one.precision: one for one in ascending}.values())

"""The contenders: bandrank in each precision, and infinity in its fastest configurations."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bandrank_bench.infinity import Configuration
from bandrank_bench.output import say
from bandrank_bench.services.contenders import Contender, fastest_of_each_precision, infinity, ours
from bandrank_bench.systems import Pattern, dtypes

BATCH_SIZES = (8, 16)  # besides the default of 32
INFINITY = (
    Configuration("torch", "float32"),
    Configuration("torch", "bfloat16"),
    Configuration("torch", "int8"),
    Configuration("optimum", "float32"),
    Configuration("optimum", "int8"),
)

Throughput = Callable[[Contender], float]  # answers per second; 0 if it cannot be started


def bandranks(checkpoints: Mapping[Pattern, Path]) -> Iterator[Contender]:
    """Yields full attention in each precision of this CPU, and the sparse pattern in the fastest."""
    for dtype in dtypes():
        yield ours(checkpoints["full"], "full", dtype)
    yield ours(checkpoints["sparse"], "sparse", dtypes()[-1])


def infinities(only: str) -> list[Configuration]:
    """The configurations whose names contain `only`."""
    return [how for how in INFINITY if only in infinity(Path(), Path(), how).name]


def tried_infinities(
    program: Path, checkpoint: Path, work: Path, throughput: Throughput, asked: Sequence[Configuration]
) -> dict[Contender, float]:
    """Tries configurations; returns their answers per second. Each has the default batch size, and the fastest of each
    precision also the others.
    """
    folders = {how: checkpoint if how.engine == "torch" else with_onnx(checkpoint, how, work) for how in asked}
    tried = {infinity(program, folder, how): how for how, folder in folders.items()}
    found = {contender: throughput(contender) for contender in tried}
    for contender in fastest_of_each_precision(found):
        how = tried[contender]
        for size in BATCH_SIZES:
            other = infinity(program, folders[how], replace(how, batch_size=size))
            found[other] = throughput(other)
    return found


def with_onnx(checkpoint: Path, how: Configuration, work: Path) -> Path:
    """Makes a folder with the checkpoint and the ONNX file that the engine optimum looks for.

    That engine passes no token types, so the exported model finds the passage itself.
    """
    # Tests run without the exporter of ONNX files.
    from bandrank_bench.onnx_files import INPUTS, LogitsWithoutTypes, export_onnx  # noqa: PLC0415

    folder = work / f"onnx-{how.dtype}"
    shutil.copytree(checkpoint, folder)
    say(f"exporting {folder.name}")
    with tempfile.TemporaryDirectory(dir=work) as exported:
        float_path, int8_path = export_onnx(LogitsWithoutTypes(checkpoint), INPUTS[:2], Path(exported))
        if how.dtype == "int8":
            shutil.move(int8_path, folder / "model_quantized.onnx")
        else:
            shutil.move(float_path, folder / "model.onnx")
    return folder

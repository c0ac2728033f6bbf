"""Loads the CPU kernels, and builds them once if none are found."""

import ctypes
import functools
import logging
from collections.abc import Callable
from ctypes import POINTER
from pathlib import Path

from bandrank_kernels.native import build
from bandrank_kernels.native.variants import usable_variants

log = logging.getLogger(__name__)
ADDRESS, LONG = ctypes.c_void_p, ctypes.c_int64
NO_SUCH_ROW = 2  # as in exports.cpp


class SplitStruct(ctypes.Structure):
    """`Split` of rows.h."""

    _fields_ = (("copies", LONG), ("sources", ADDRESS), ("shares", ADDRESS), ("offsets", ADDRESS))


class WeightsStruct(ctypes.Structure):
    """`Weights` of gemm.h."""

    _fields_ = (
        ("outputs", LONG),
        ("inputs", LONG),
        ("bf16", LONG),
        ("split", SplitStruct),
        ("panels", ADDRESS),
        ("scales", ADDRESS),
        ("sums", ADDRESS),
        ("bias", ADDRESS),
    )


class NormStruct(ctypes.Structure):
    """`Norm` of rows.h."""

    _fields_ = (("weight", ADDRESS), ("bias", ADDRESS), ("eps", ctypes.c_float), ("centred", ctypes.c_int32))


class AddendStruct(ctypes.Structure):
    """`Addend` of rows.h."""

    _fields_ = (("rows", ADDRESS), ("numbers", ADDRESS), ("num_rows", LONG), ("stride", LONG))


class TurnStruct(ctypes.Structure):
    """`Turn` of rotary.h."""

    _fields_ = (
        ("heads", LONG),
        ("head_dim", LONG),
        ("positions", ADDRESS),
        ("cosines", ADDRESS),
        ("sines", ADDRESS),
        ("norms", ADDRESS),
        ("eps", ctypes.c_float),
    )


class ProductsStruct(ctypes.Structure):
    """`Products` of layers.h."""

    _fields_ = (
        *((name, POINTER(WeightsStruct)) for name in ("out", "up", "down")),
        ("unit", LONG),
    )


class PostNormStruct(ctypes.Structure):
    """`PostNorm` of layers.h."""

    _fields_ = (("products", ProductsStruct), ("attention_norm", NormStruct), ("out_norm", NormStruct))


class PreNormStruct(ctypes.Structure):
    """`PreNorm` of layers.h."""

    _fields_ = (
        ("products", ProductsStruct),
        *((name, NormStruct) for name in ("up_norm", "final_norm", "update_norm", "down_norm")),
    )


class PatternStruct(ctypes.Structure):
    """`Pattern` of layers.h."""

    _fields_ = (
        ("window", LONG),
        ("cls_to_query", LONG),
        ("cls_to_rows", LONG),
        ("rows_to_cls", LONG),
        ("rows_to_query", LONG),
    )


class BiasesStruct(ctypes.Structure):
    """`Biases` of attention_task.h."""

    _fields_ = (("table", ADDRESS), ("stride", LONG), ("reach", LONG), ("positions", ADDRESS))


class LayerStruct(ctypes.Structure):
    """`Layer` of stack.h."""

    _fields_ = (("qkv", POINTER(WeightsStruct)), ("rest", POINTER(PostNormStruct)))


class SequencesStruct(ctypes.Structure):
    """`Sequences` of stack.h."""

    _fields_ = (
        *((name, LONG) for name in ("heads", "head_dim", "rows", "before", "far")),
        ("pattern", PatternStruct),
        ("queries", ADDRESS),
        ("num_queries", LONG),
        ("pieces", ADDRESS),
        ("num_pieces", LONG),
        ("joint", ADDRESS),
        ("num_joint", LONG),
    )


SIGNATURES: dict[str, list[type]] = {
    "pack": [ADDRESS, LONG, LONG, LONG, ADDRESS, ADDRESS],
    "linear": [ADDRESS, LONG, LONG, POINTER(WeightsStruct), ctypes.c_int, ADDRESS],
    "post_norm": [ADDRESS, ADDRESS, LONG, POINTER(PostNormStruct), ADDRESS],
    "pre_norm": [ADDRESS, ADDRESS, LONG, POINTER(PreNormStruct), ADDRESS],
    "project": [ADDRESS, LONG, POINTER(WeightsStruct), POINTER(NormStruct), POINTER(TurnStruct), ADDRESS],
    "sequences": [
        *(ADDRESS, ADDRESS, POINTER(WeightsStruct), POINTER(PostNormStruct)),
        *(LONG, LONG, POINTER(PatternStruct), ADDRESS, LONG, ADDRESS, ADDRESS),
    ],
    "joint_sequences": [ADDRESS, POINTER(WeightsStruct), POINTER(PostNormStruct), LONG, LONG, ADDRESS, LONG, ADDRESS],
    "finish_cls": [ADDRESS, LONG, ADDRESS, LONG, LONG, ADDRESS],
    "attend": [
        *(ADDRESS, LONG, LONG, ADDRESS, ADDRESS, LONG, LONG, LONG, ADDRESS, LONG, POINTER(BiasesStruct), ADDRESS)
    ],
    "attend_shared": [ADDRESS, LONG, LONG, LONG, ADDRESS, ADDRESS, LONG, LONG, LONG, ADDRESS],
    "stack": [POINTER(SequencesStruct), POINTER(LayerStruct), LONG, ADDRESS, ADDRESS, ADDRESS, LONG, ADDRESS],
    "norm_of_sum": [POINTER(AddendStruct), LONG, POINTER(NormStruct), LONG, LONG, LONG, ADDRESS],
    "dense": [ADDRESS, LONG, LONG, ADDRESS, ADDRESS, LONG, ADDRESS],
    "keep_awake": [POINTER(LONG)],
    "awake_for": [POINTER(LONG), LONG],
}


class CannotLoad(RuntimeError):
    """A built library cannot be used; the message says why, as a clause."""


class Library:
    """The functions of one built variant. They raise MemoryError if memory runs out, IndexError if a table lacks a row,
    and let other Python threads run.

    variant: its name.  panel: outputs of a layer that are packed together.  depth: bytes of a row that are multiplied
    together.  bfloat16_depth: the same, of a bfloat16 row.  block_rows: rows that go through a chain of layers
    together.  bias_room: numbers after the biases of a head that may be read.  has_bfloat16: whether layers may have
    weights in bfloat16, and attention without biases multiplies bfloat16 numbers.  has_idle_priority: asks
    whether the system lets threads of this process run when no other wants to.
    """

    def __init__(self, path: Path, variant: str) -> None:
        """Raises CannotLoad if the file cannot be read, or if the system does not let this process run it."""
        self.path, self.variant = path, variant
        try:
            functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise CannotLoad(f"{path} cannot be loaded: {error}") from error
        if not functions.bandrank_start():
            raise CannotLoad("the system does not let this process use AMX")
        self.panel: int = functions.bandrank_panel()
        self.depth: int = functions.bandrank_depth()
        self.bfloat16_depth: int = functions.bandrank_bf16_depth()
        self.block_rows: int = functions.bandrank_block_rows()
        self.bias_room: int = functions.bandrank_bias_room()
        self.has_bfloat16 = bool(functions.bandrank_has_bf16())
        self.has_idle_priority: Callable[[], int] = functions.bandrank_has_idle_priority

        def typed(name: str) -> Callable[..., None]:
            function = getattr(functions, f"bandrank_{name}")
            function.argtypes, function.errcheck = SIGNATURES[name], _raise_error
            return function  # type: ignore[no-any-return]

        self.pack, self.linear, self.post_norm = typed("pack"), typed("linear"), typed("post_norm")
        self.sequences, self.finish_cls = typed("sequences"), typed("finish_cls")
        self.joint_sequences = typed("joint_sequences")
        self.attend, self.attend_shared, self.dense = typed("attend"), typed("attend_shared"), typed("dense")
        self.stack, self.pre_norm, self.project = typed("stack"), typed("pre_norm"), typed("project")
        self.norm_of_sum = typed("norm_of_sum")
        self.keep_awake, self.awake_for = typed("keep_awake"), typed("awake_for")

    def padded(self, outputs: int) -> int:
        """The outputs of a layer, rounded up to whole panels."""
        return -(-outputs // self.panel) * self.panel


def _raise_error(error: int, *_: object) -> None:
    if error == NO_SUCH_ROW:
        raise IndexError("a number is outside its table of rows")
    if error:
        raise MemoryError("the CPU kernels were given no memory")


@functools.cache
def load() -> Library | str:
    """The library of the best variant that can be built and runs here; or, as a clause, why there is none."""
    reasons = []
    for variant in usable_variants():
        try:
            library = Library(build.find(variant), variant.name)
        except (build.CannotBuild, CannotLoad) as error:
            reasons.append(str(error))
            log.warning("CPU kernels for %s cannot be used: %s", variant.name, error)
        else:
            return library
    return next(iter(reasons), "this processor has neither AVX2 nor Arm's dot products, or the system does not say so")


def why_no_native() -> str | None:
    """Why the CPU kernels cannot run here, as a clause; None if they can."""
    library = load()
    return library if isinstance(library, str) else None


def native() -> Library:
    """The library. Raises RuntimeError with the reason if there is none."""
    library = load()
    if isinstance(library, Library):
        return library
    raise RuntimeError(f"the CPU kernels cannot run: {library}")

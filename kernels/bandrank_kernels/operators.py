"""The one door through which functions become torch operators, which autograd and torch.compile know."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_LIBRARY = torch.library.Library("bandrank", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch leaves it bare


def register(
    schema: str,
    run: Callable[..., Result],
    fake: Callable[..., Result],
    *,
    keep: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Result]:
    """Registers the operator `bandrank::<name>` for CPU and CUDA tensors, and returns it.

    schema: name, arguments and results as torch writes them.  run: computes the results.  fake: the same checks, and
    results without contents.  keep, backward: the gradient, as `torch.library.register_autograd` takes `setup_context`
    and `backward`; an operator without them has none.
    """
    name = schema.partition("(")[0]
    # `define` and `impl` rather than the `custom_op` decorator, which costs each call some microseconds more.
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]  # likewise
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, device)  # type: ignore[no-untyped-call]  # likewise
    torch.library.register_fake(f"bandrank::{name}", fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"bandrank::{name}", backward, setup_context=keep, lib=_LIBRARY)
    return getattr(torch.ops.bandrank, name).default  # type: ignore[no-any-return]  # torch.ops has no types

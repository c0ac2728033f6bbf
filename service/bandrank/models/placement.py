"""Where scorers compute, and in what dtype."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def usable_device(name: str) -> torch.device:
    """The device of this name ("cpu", "cuda", "cuda:1", ...). Raises ValueError, with torch's reason, if it is none or
    not there.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ValueError(str(error).splitlines()[0]) from error

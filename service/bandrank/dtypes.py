"""Names of dtypes, as settings, recipes and reports spell them."""

from typing import Literal, get_args

import torch

DtypeName = Literal["float32", "bfloat16", "float16"]  # that scorers compute in
PayloadDtype = Literal["float32", "float16", "int8"]  # that cached representations are kept in
DTYPES: dict[DtypeName, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}

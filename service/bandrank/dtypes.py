"""Names of the floating-point dtypes that scorers compute in, as settings, recipes and reports spell them."""

from typing import Literal, get_args

import torch

DtypeName = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[DtypeName, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}

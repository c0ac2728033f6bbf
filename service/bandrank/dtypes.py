"""Names of dtypes, as settings, recipes and reports spell them."""

from typing import Literal

FloatName = Literal["float32", "bfloat16", "float16"]
DtypeName = Literal[FloatName, "int8"]  # of computation; int8: in the linear layers of the encoder, on a CPU
PayloadDtype = Literal["float32", "float16", "int8"]  # of cached representations

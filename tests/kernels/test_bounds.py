"""The kernels of windowed attention under the address sanitizer: all in one compilation, in one process."""

from support.emulation import needs_compiler, run_sanitized

SANITIZED = """
from kernels.test_forward_launch import PLANS, is_right, run
from kernels.test_gradient_kernels import SMALL, Layer
from support.emulated_launch import prepare
from bandrank_kernels.cuda import read_source
from bandrank_kernels.launch import Kernel
from bandrank_kernels.windowed_attention.cuda.variants import FOLDER, GRADIENT_PARTS, SHARED, Gradient
gradients = [Gradient("float16", 32, part) for part in GRADIENT_PARTS]
variants = [*(plan.variant for plan in PLANS.values()), *gradients]
files = dict.fromkeys(variant.file for variant in variants)
source = read_source(*SHARED, *(f"{FOLDER}/{file}" for file in files))
kernels = [Kernel(source, variant.name_expression) for variant in variants]
prepare(*kernels, sanitize=True)
for plan, kernel in zip(PLANS.values(), kernels):
    print(is_right(*run(plan, kernel=kernel)), flush=True)
layer = Layer(SMALL, 4, "float16", num_heads=2, head_dim=32)
print(layer.is_right(layer.run(kernels=tuple(kernels[-2:]))), flush=True)
"""


@needs_compiler
def test_no_access_is_out_of_bounds() -> None:
    """Forward and backward, on arrays of exactly the size they must have, with results that are right."""
    ended = run_sanitized(SANITIZED)

    assert (ended.stdout.splitlines(), ended.stderr) == (["True"] * 4, "")

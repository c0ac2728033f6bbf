"""Launches that begin while the one before ends, on a GPU: they read what it wrote."""

import pytest
import torch
from support.on_gpu import BUSY_CYCLES, GPU, OBSTACLE

from bandrank_kernels.launch import Kernel, launch, plan_launch, struct_layout
from bandrank_kernels.row_norms import add_norm

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

# Lets the next launch begin at once, and writes late, so that what reads too early reads something else.
SLOW = Kernel(
    """
struct Params { float* out; long long cycles; int size; };
__global__ void fill(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const long long start = clock64();
  while (clock64() - start < p.cycles) {}
  for (int i = threadIdx.x; i < p.size; i += blockDim.x) p.out[i] = 2.f;
}
""",
    "fill",
)
PARAMS = struct_layout(addresses="out", longs="cycles", ints="size")


def test_a_launch_that_begins_early_reads_what_the_one_before_wrote() -> None:
    rows, residual = torch.ones(64, 384, device=GPU), torch.zeros(64, 384, device=GPU)
    residual[:, ::2] = 1
    weight, bias = torch.ones(384, device=GPU), torch.zeros(384, device=GPU)
    truth = add_norm(2 * torch.ones_like(rows), residual, weight, bias, eps=0, backend="vectorized")
    add_norm(rows, residual, weight, bias, eps=0, backend="cuda")  # compiles
    slow = plan_launch(SLOW, blocks=1, threads=128, layout=PARAMS, out=rows, cycles=BUSY_CYCLES, size=rows.numel())

    def both() -> torch.Tensor:
        launch(slow, GPU)
        return add_norm(rows, residual, weight, bias, eps=0, backend="cuda")

    launched = both()
    torch.testing.assert_close(launched, truth)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for _ in range(3):
        rows.fill_(7)
        graph.replay()
        torch.testing.assert_close(captured, truth)

"""The emulation of CUDA on a CPU gives the results that CUDA defines, and finds mistakes."""

import numpy as np
import pytest
from emulation.compiled import SCHEDULES, Emulation, EmulationError, Schedule, needs_compiler, run_sanitized

from bandrank_kernels.cuda import read_source

pytestmark = needs_compiler
ONE = (1, 1, 1)
DTYPES = ["__half", "__nv_bfloat16"]
DEPTHS = [8, 16]

ROUND = """
template <class T>
__global__ void round_trip(const float* __restrict__ in, float* __restrict__ out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = float(T(in[i]));
}
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_16_bit_numbers_round_to_nearest_even(dtype: str) -> None:
    """All halfs, and the middles between neighbours, come out as NumPy rounds them; bfloat16 likewise."""
    halfs = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halfs = halfs[np.isfinite(halfs)]
    middle = (halfs[:-1].astype(np.float64) + halfs[1:]) / 2
    numbers = np.concatenate([halfs, middle.astype(np.float32), [65519.9, 65520, -1e-8, 3e-8, 1e30, np.inf, 0.1]])
    numbers = numbers.astype(np.float32)
    out = np.full_like(numbers, np.nan)
    kernel = f"round_trip<{dtype}>"
    grid = (-(-len(numbers) // 256), 1, 1)
    Emulation(ROUND, [f"round_trip<{name}>" for name in DTYPES]).launch(
        kernel, grid=grid, block=(256, 1, 1), arguments=[numbers, out, np.int32(len(numbers))]
    )

    if dtype == "__half":
        with np.errstate(over="ignore"):
            expected = numbers.astype(np.float16).astype(np.float32)
    else:
        bits = numbers.view(np.uint32).astype(np.uint64)
        expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(out, expected)


PRODUCT = """
// Every lane loads its fragments by the tables of the PTX manual: A (16, K), B (K, 8), C (16, 8), row by row.
template <class T, int K>
__global__ void product(const float* a, const float* b, float* c) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  auto pair = [](const float* p, int next) { return pack<T>(p[0], p[next]); };
  unsigned x[K / 4], y[K / 8];
  for (int r = 0; r < K / 4; r++) x[r] = pair(a + (g + 8 * (r % 2)) * K + 2 * t + 8 * (r / 2), 1);
  for (int r = 0; r < K / 8; r++) y[r] = pair(b + (2 * t + 8 * r) * 8 + g, 8);
  float sums[4];
  for (int i = 0; i < 4; i++) sums[i] = c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
  if constexpr (K == 16) mma_k16<T>(sums, x[0], x[1], x[2], x[3], y[0], y[1]);
  else mma_k8<T>(sums, x[0], x[1], y[0]);
  for (int i = 0; i < 4; i++) c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warp_multiplies_matrices(dtype: str, depth: int, schedule: Schedule) -> None:
    """The matrices hold small whole numbers, whose products are exact."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((16, depth), (depth, 8), (16, 8)))
    expected = c + a @ b
    kernel = f"product<{dtype}, {depth}>"
    kernels = [f"product<{name}, {size}>" for name in DTYPES for size in DEPTHS]
    emulation = Emulation(read_source("cuda/primitives.cuh") + PRODUCT, kernels)
    emulation.launch(kernel, grid=ONE, block=(32, 1, 1), arguments=[a, b, c], schedule=schedule)

    np.testing.assert_array_equal(c, expected)


EXCHANGES = """
struct Numbers { double scale; int count; };
__global__ void exchanges(int* out, const Numbers numbers) {
  const int lane = threadIdx.x % 32;
  int* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_xor_sync(0xffffffffu, lane, 5);
  mine[1] = __shfl_down_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_up_sync(0xffffffffu, lane, 3);
  mine[3] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  if (lane < 8) mine[4] = __shfl_sync(0x000000ffu, lane, 7 - lane);
  else mine[4] = __any_sync(0xffffff00u, lane == 20);
  mine[5] = int(numbers.scale * numbers.count);
  mine[6] = int(__byte_perm(0x33221100u, 0x77665544u, 0x7632u));
  mine[7] = atomicAdd(out + 64 * 8, 1) < 64;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_exchange_values(schedule: Schedule) -> None:
    """The kernel has shuffles, votes, some lanes apart from the others, a struct passed by value, and atomics."""
    numbers = np.array((2.5, 4), np.dtype([("scale", "f8"), ("count", "i4")], align=True))[()]
    out = np.full(64 * 8 + 1, -1, np.int32)
    out[-1] = 0
    lane = np.tile(np.arange(32), 2)
    Emulation(EXCHANGES, ["exchanges"]).launch(
        "exchanges", grid=ONE, block=(64, 1, 1), arguments=[out, numbers], schedule=schedule
    )
    actual = out[:-1].reshape(64, 8).T

    np.testing.assert_array_equal(actual[0], lane ^ 5)
    np.testing.assert_array_equal(actual[1], np.where(lane < 29, lane + 3, lane))
    np.testing.assert_array_equal(actual[2], np.where(lane >= 3, lane - 3, lane))
    assert set(actual[3].view(np.uint32)) == {sum(1 << i for i in range(0, 32, 3))}
    np.testing.assert_array_equal(actual[4], np.where(lane < 8, 7 - lane, 1))
    assert set(actual[5]) == {10}
    assert set(actual[6]) == {0x77663322}
    assert set(actual[7]) == {1}
    assert out[-1] == 64


REVERSE = read_source("cuda/primitives.cuh") + (
    """
__global__ void reverse(const float* in, float* out, int n) {
  DYNAMIC_SHARED(memory);
  float* shared = reinterpret_cast<float*>(memory);
  shared[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = shared[n - 1 - threadIdx.x];
}
"""
)


def reverse(source: str, schedule: Schedule) -> np.ndarray[tuple[int, ...], np.dtype]:
    """Returns the kernel's result for 0 .. 127."""
    out = np.full(128, np.nan, np.float32)
    Emulation(source, ["reverse"]).launch(
        "reverse",
        grid=ONE,
        block=(128, 1, 1),
        shared_bytes=512,
        arguments=[np.arange(128, dtype=np.float32), out, np.int32(128)],
        schedule=schedule,
    )
    return out


def without(source: str, text: str, instead: str = "") -> str:
    assert source.count(text) == 1
    return source.replace(text, instead)


@pytest.mark.parametrize(
    ("text", "instead", "message"),
    [
        ("__syncthreads();", "if (threadIdx.x % 32) __syncwarp(); else __syncthreads();", "not all of them come"),
        ("__syncthreads();", "if (threadIdx.x < 32) __syncthreads(); else\n __syncthreads();", "__syncthreads at line"),
        ("shared[threadIdx.x] = in", "shared[threadIdx.x + 1] = in", "wrote 0 bytes behind shared memory"),
    ],
)
def test_a_launch_that_goes_wrong_says_where(text: str, instead: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        reverse(without(REVERSE, text, instead), "depth first")


SANITIZED = f"""
import numpy as np
from emulation.compiled import Emulation
emulation = Emulation({REVERSE!r}, ["reverse"], sanitize=True)
out = np.zeros(128, np.float32)
for n, size in ((128, 128), (128, 100)):
    print("launch", size, flush=True)
    emulation.launch("reverse", grid=(1, 1, 1), block=(128, 1, 1), shared_bytes=512,
                     arguments=[np.zeros(size, np.float32), out, np.int32(n)])
"""


def test_the_sanitizer_names_the_line_of_an_access_out_of_bounds() -> None:
    """A launch within bounds passes; the next one, with an array of 100 for 128 threads, ends the process."""
    ended = run_sanitized(SANITIZED)

    assert ended.stdout.split() == ["launch", "128", "launch", "100"]
    assert ended.returncode
    assert "heap-buffer-overflow" in ended.stderr
    assert "in reverse" in ended.stderr


def test_the_sanitizer_names_the_line_of_an_access_between_two_units() -> None:
    """A GPU loads two numbers at once from even places only; a processor, from any."""
    pairs = REVERSE.replace("in[", "((const float2*)(in + 1))->x + in[")
    assert pairs != REVERSE

    ended = run_sanitized(SANITIZED.replace(repr(REVERSE), repr(pairs)))

    assert ended.stdout.split() == ["launch", "128"]
    assert ended.returncode
    assert "misaligned address" in ended.stderr

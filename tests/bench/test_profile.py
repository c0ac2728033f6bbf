"""The profile: from samples to operators to a page, and a real recording where perf is allowed."""

import shutil
import time

import pytest

from bandrank_bench.profile import OTHER, Profile, by_operator, markdown, recorded


def test_a_sample_belongs_to_the_first_operator_that_it_names() -> None:
    """Operators are recognised by library and symbol, in upper or lower case."""
    found = [
        ("avx512_vnni-0123.so", "bandrank::multiply_tile<6>"),
        ("avx512_vnni-0123.so", "bandrank::attend_lanes<2>"),
        ("avx512_vnni-0123.so", "bandrank::multiply<bandrank::post_norm(float const*)::{lambda(long)#2}>"),
        ("amx-0123.so", "bandrank::multiply<bandrank::raise(bandrank::Weights const&)::{lambda(long)#1}>"),
        ("amx-0123.so", "bandrank::weigh"),
        ("avx512_vnni-0123.so", "bandrank::SequenceLayer::chunk"),
        ("avx512_vnni-0123.so", "bandrank::post_norm"),
        ("libtorch_cpu.so", "mkl_blas_avx512_sgemm_kernel_0"),
        ("perf-4711.map", "[unknown]"),
        ("libtorch_cpu.so", "at::native::layer_norm_kernel"),
        ("libtorch_cpu.so", "at::native::erf_kernel"),
        ("libtorch_cpu.so", "at::add"),
        ("tokenizers.abi3.so", "[unknown]"),
        ("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault"),
        ("libc.so.6", "__memmove_avx512_unaligned_erms"),
        ("[kernel.kallsyms]", "clear_page_erms"),
        ("libgomp.so.1", "gomp_team_barrier_wait_end"),
    ]

    assert by_operator(found) == {
        "products of matrices": 5,
        "attention": 3,
        "normalising, activating, making int8": 3,
        "tokenising": 1,
        "Python": 1,
        "copies": 1,
        "the operating system": 1,
        "waiting for threads": 1,
        OTHER: 1,
    }


def test_the_page_has_a_column_for_each_system() -> None:
    page = markdown(
        [
            Profile("W0", "full float32", 10.0, {"attention": 5.0, "Python": 15.0}),
            Profile("W0", "full int8", 4.0, {"attention": 4.0, "Python": 4.0}),
        ],
        {"CPU": "one"},
    )

    assert "| wall time | 10.0 | 4.0 |" in page
    assert "| all processors | 20.0 | 8.0 |" in page
    assert "| attention | 5.0 (25%) | 4.0 (50%) |" in page
    assert "| copies | 0.0 (0%) | 0.0 (0%) |" in page


def test_a_recording_sees_this_process() -> None:
    """The recorded process only counts in Python."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    try:
        with recorded() as samples:
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
    except RuntimeError as refused:
        pytest.skip(str(refused))

    assert by_operator(samples).most_common(1)[0][0] in {"Python", "the operating system"}

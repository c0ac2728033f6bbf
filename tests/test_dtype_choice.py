"""The dtype that a model is served in: the one that was asked for, or the best for the device."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import tiny_cross_encoder
from support.native import needs_bfloat16, needs_native
from support.precomputing import tiny_colbert
from support.scorers import LookupScorer, loaded
from support.tokenizer import TOKENIZER_FILE

from bandrank import dtype_choice
from bandrank.dtype_choice import choose_dtype
from bandrank.errors import BadSetting
from bandrank.models import checkpoint, timing
from bandrank.models.checkpoint import BadCheckpoint, Precision, load_precision, save_precision
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.sample import sample_request
from bandrank.models.timing import seconds_by_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def overflowing() -> LoadedModel:
    """A model that is known to overflow float16."""

    class Overflowing(LookupScorer):
        overflows_float16 = True

    return loaded(Overflowing({}))


@pytest.fixture
def marked(tmp_path: Path) -> LoadedModel:
    """A checkpoint that was measured to be fit for int8."""
    checkpoint.save(tiny_cross_encoder(), tmp_path / "marked", tokenizer=TOKENIZER_FILE)
    save_precision(tmp_path / "marked", Precision(("int8",)))
    return load_model(str(tmp_path / "marked"))


@pytest.mark.parametrize(
    ("device", "model", "expected"),
    [
        (GPU, loaded(LookupScorer({})), torch.float16),
        (GPU, overflowing(), torch.bfloat16),
        (CPU, overflowing(), torch.float32),
        (CPU, loaded(tiny_cross_encoder()), torch.float32),
    ],
)
def test_auto_is_what_the_device_is_best_at(device: torch.device, model: LoadedModel, expected: torch.dtype) -> None:
    """A GPU gets float16, or bfloat16 if the model may overflow; a CPU gets float32 unless the checkpoint is marked."""
    assert choose_dtype("auto", device, model) == expected


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_what_is_asked_for_is_what_runs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """float16 comes with a warning if the model may overflow it. That is no reason for a dtype that was asked for."""
    with caplog.at_level(logging.INFO):
        assert choose_dtype(name, CPU, overflowing()) == getattr(torch, name)  # type: ignore[arg-type]
    assert ("may overflow" in caplog.text) == (name == "float16")


@pytest.mark.parametrize(
    ("name", "processor", "warned"),
    [
        ("bfloat16", {"avx512_bf16": False, "amx_bf16": False}, True),
        ("bfloat16", {"avx512_bf16": True}, False),
        ("float16", {"amx_bf16": True}, True),
        ("float16", {"avx512_fp16": True}, False),
        ("float32", {}, False),
        ("bfloat16", {"architecture": "aarch64"}, False),
    ],
)
def test_a_dtype_that_the_processor_emulates_is_slow(
    name: str,
    processor: dict[str, Any],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A dtype that an x86 processor only emulates is used as asked for, with a warning."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", **processor})
    with caplog.at_level(logging.WARNING):
        choose_dtype(name, CPU, loaded(LookupScorer({})))  # type: ignore[arg-type]
    assert ("only emulates it" in caplog.text) == warned


@needs_native
@pytest.mark.parametrize("fastest", [torch.float32, torch.int8])
def test_auto_is_the_fastest_of_those_that_a_checkpoint_is_fit_for(
    fastest: torch.dtype, marked: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        dtype_choice,
        "seconds_by_dtype",
        lambda _scorer, _device, dtypes: {each: 0.5 + (each != fastest) for each in dtypes},
    )
    with caplog.at_level(logging.INFO):
        assert choose_dtype("auto", CPU, marked) == fastest
    assert "500.0 ms in " + str(fastest).removeprefix("torch.") in caplog.text


def test_auto_measures_every_dtype_that_a_checkpoint_is_fit_for(
    marked: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only int8 is left out, where it cannot be computed. Where kernels compute bfloat16, it takes float32's place."""
    model = replace(marked, fit=("bfloat16", "int8"))
    compared: list[torch.dtype] = []

    def measured(_scorer: object, _device: object, dtypes: list[torch.dtype]) -> dict[torch.dtype, float]:
        compared[:] = dtypes
        return {each: 1.0 - number / 10 for number, each in enumerate(dtypes)}

    monkeypatch.setattr(dtype_choice, "seconds_by_dtype", measured)
    monkeypatch.setattr(dtype_choice, "why_not_quantised", lambda _: None)
    monkeypatch.setattr(dtype_choice, "why_not_bfloat16", lambda _: "this processor is slow in it")
    assert choose_dtype("auto", CPU, model) == torch.int8
    assert compared == [torch.float32, torch.bfloat16, torch.int8]
    monkeypatch.setattr(dtype_choice, "why_not_quantised", lambda _: "there is no C++ compiler")
    assert choose_dtype("auto", CPU, model) == torch.bfloat16
    assert compared == [torch.float32, torch.bfloat16]
    monkeypatch.setattr(dtype_choice, "why_not_quantised", lambda _: None)
    monkeypatch.setattr(dtype_choice, "why_not_bfloat16", lambda _: None)
    assert choose_dtype("auto", CPU, model) == torch.int8
    assert compared == [torch.bfloat16, torch.int8]


@needs_native
def test_measuring_changes_nothing(marked: LoadedModel) -> None:
    before = {name: each.clone() for name, each in marked.scorer.state_dict().items()}

    seconds = seconds_by_dtype(marked.scorer, CPU, [torch.float32, torch.int8])

    assert set(seconds) == {torch.float32, torch.int8}
    assert all(0 < each < 60 for each in seconds.values())
    assert {name: each.dtype for name, each in marked.scorer.state_dict().items()} == {
        name: each.dtype for name, each in before.items()
    }


@needs_native
@pytest.mark.parametrize(
    ("float32", "int8"),
    [
        pytest.param([3.0, 3.0], [1.0, 1.0], id="clear"),
        pytest.param([3.0, 3.0], [9.0, 1.0], id="a pause at first"),
        pytest.param([1.2, 1.2, 1.2, 1.2], [1.0, 1.0, 1.0, 1.0], id="close"),
    ],
)
def test_rounds_end_once_a_dtype_is_clearly_the_fastest(
    float32: list[float], int8: list[float], marked: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round is never enough: the machine may have paused in it."""
    left = {torch.float32: [*float32, 0.0], torch.int8: [*int8, 0.0]}
    monkeypatch.setattr(timing, "_seconds", lambda prepared, _batch: left[prepared.dtype].pop(0))

    seconds = seconds_by_dtype(marked.scorer, CPU, [*left])

    assert seconds == {torch.float32: min(float32), torch.int8: min(int8)}
    assert [len(each) for each in left.values()] == [1, 1]


def test_what_is_measured_is_no_longer_than_the_scorer_reads() -> None:
    """A ColBERT with room for eight tokens of a query cannot be given ten."""
    sample = sample_request(tiny_colbert(max_query_tokens=8, max_candidate_tokens=9))

    assert (sample.queries.max_seqlen, sample.candidates.max_seqlen) == (8, 9)


def test_without_kernels_auto_is_float32_and_says_what_is_missing(
    marked: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dtype_choice, "why_not_quantised", lambda _: "there is no C++ compiler")
    with caplog.at_level(logging.WARNING):
        assert choose_dtype("auto", CPU, marked) == torch.float32
    assert "does not compute in int8, which would be faster: there is no C++ compiler" in caplog.text


@needs_native
def test_auto_tells_that_int8_is_faster(
    marked: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so for a model on a CPU without a mark, as those of the hub are, which is not timed."""
    unmarked = replace(marked, fit=())
    with caplog.at_level(logging.INFO):
        assert choose_dtype("auto", CPU, unmarked) == torch.float32
        monkeypatch.setattr(dtype_choice, "why_not_bfloat16", lambda _: None)
        assert choose_dtype("auto", CPU, unmarked) == torch.bfloat16
    assert "computes in float32; BANDRANK_DTYPE=int8 is two to three times as fast" in caplog.text
    assert "computes in bfloat16; BANDRANK_DTYPE=int8 is 1.3 to 1.8 times as fast" in caplog.text


@needs_bfloat16
def test_auto_is_bfloat16_where_kernels_compute_it() -> None:
    """Heads of this size suit the kernels."""
    assert choose_dtype("auto", CPU, loaded(tiny_cross_encoder(num_heads=2))) == torch.bfloat16


def test_int8_where_it_cannot_be_computed_is_a_bad_setting(
    marked: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadSetting, match=r"dtype cannot be int8 for .*: int8 is for a CPU"):
        choose_dtype("int8", GPU, marked)
    monkeypatch.setattr(dtype_choice, "why_not_quantised", lambda _: "there is no C++ compiler")
    with pytest.raises(BadSetting, match="there is no C"):
        choose_dtype("int8", CPU, marked)


def test_marks_are_kept_in_the_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tiny_cross_encoder(), tmp_path, tokenizer=TOKENIZER_FILE)
    assert load_precision(tmp_path).fit == ()
    save_precision(tmp_path, Precision(("int8",)))
    assert load_precision(tmp_path).fit == ("int8",)
    assert load_model(str(tmp_path)).fit == ("int8",)
    save_precision(tmp_path, Precision(("int4",)))  # type: ignore[arg-type]
    with pytest.raises(BadCheckpoint, match="fit: 'int4' is none of"):
        load_precision(tmp_path)
    save_precision(tmp_path, Precision())
    assert "fit" not in (tmp_path / "config.json").read_text(encoding="utf-8")

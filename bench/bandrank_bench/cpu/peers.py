"""The runtimes to compare with, each set up for speed as its users would, all with the same checkpoint.

sentence-transformers batches by its defaults; the others get length-sorted batches.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from bandrank_bench.batches import Batch, padded_batches
from bandrank_bench.onnx_files import INPUTS, Logits, export_onnx, open_onnx
from bandrank_bench.sentence import sentence_transformers
from bandrank_bench.systems import NUM_THREADS, Precision, Score, Scores, System, has_native_bf16, torch_precision
from bandrank_bench.workloads import load_tokenizer


def load_peers(checkpoint: Path, work: Path) -> list[System]:
    """Loads every peer in every precision, except OpenVINO in int8, which needs another tool.

    Converted models are written to `work`.
    """
    tokenizer = load_tokenizer(checkpoint)
    float_onnx, int8_onnx = export_onnx(Logits(checkpoint), INPUTS, work)
    return [
        *(sentence_transformers(checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16)),
        *(_transformers(checkpoint, tokenizer, dtype) for dtype in (torch.float32, torch.bfloat16)),
        System("ONNX Runtime fp32, sorted", "fp32", "full", "peer", _onnx_runtime(float_onnx, tokenizer)),
        System("ONNX Runtime int8 dynamic, sorted", "int8", "full", "peer", _onnx_runtime(int8_onnx, tokenizer)),
        *_openvino(checkpoint, tokenizer),
    ]


def _transformers(checkpoint: Path, tokenizer: Tokenizer, dtype: torch.dtype) -> System:
    model = BertForSequenceClassification.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa")

    def logits(batch: Batch) -> Scores:
        ids, mask, types = torch.from_numpy(batch)
        with torch.inference_mode():  # no mask without padding: torch's attention is faster
            output = model(ids, attention_mask=None if mask.all() else mask, token_type_ids=types)
        return np.asarray(output.logits.float()[:, 0])

    precision = torch_precision(dtype)
    return System(f"transformers {precision}, sorted", precision, "full", "peer", _over_batches(tokenizer, logits))


def _onnx_runtime(model: Path, tokenizer: Tokenizer) -> Score:
    run = open_onnx(model)
    return _over_batches(tokenizer, lambda batch: run(batch)[:, 0])


def _openvino(checkpoint: Path, tokenizer: Tokenizer) -> Iterator[System]:
    os.environ.setdefault("CI", "true")  # otherwise OpenVINO's converter sends telemetry
    example = {name: torch.ones(2, 12, dtype=torch.int64) for name in INPUTS}
    model = ov.convert_model(Logits(checkpoint), example_input=example, input=[(name, [-1, -1]) for name in INPUTS])
    for asked, hint in (("fp32", "f32"), ("bf16", "bf16")):
        compiled = ov.Core().compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": NUM_THREADS,
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        request = compiled.create_infer_request()

        def logits(batch: Batch, request: ov.InferRequest = request) -> Scores:
            return np.array(request.infer(dict(zip(INPUTS, batch, strict=True)))[0][:, 0])

        precision = _openvino_precision(compiled)
        name = f"OpenVINO {precision}" if precision.startswith(asked) else f"OpenVINO {precision} instead of {asked}"
        yield System(f"{name}, sorted", precision, "full", "peer", _over_batches(tokenizer, logits))


def _openvino_precision(compiled: ov.CompiledModel) -> Precision:
    """The precision in which the compiled model runs its linear layers; the hint may be ignored."""
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    linear = [layer for layer in layers if layer["layerType"].astype(str) == "FullyConnected"]
    ran = {str(layer["runtimePrecision"].astype(str)) for layer in linear}
    if ran == {"f32"}:
        return "fp32"
    if ran == {"bf16"}:
        return "bf16" if has_native_bf16() else "bf16 emulated"
    raise RuntimeError(f"expected OpenVINO's linear layers in f32 or in bf16, got {sorted(ran)}")


def _over_batches(tokenizer: Tokenizer, logits: Callable[[Batch], Scores]) -> Score:
    def score(query: str, passages: Sequence[str]) -> Scores:
        scores = np.empty(len(passages), np.float32)
        pairs = tokenizer.encode_batch_fast([(query, passage) for passage in passages])
        for indices, batch in padded_batches(pairs):
            scores[indices] = logits(batch)
        return scores

    return score

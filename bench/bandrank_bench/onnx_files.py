"""The checkpoint as ONNX, in float32 and in int8."""

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import torch
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from bandrank_bench.batches import Batch
from bandrank_bench.checkpoint import MAX_POSITIONS
from bandrank_bench.systems import NUM_THREADS, Scores

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SEP = 102  # BERT's; ends the query and the passage


class Logits(nn.Module):
    """The classifier with tensors in and out, as exporters need it."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self.model = BertForSequenceClassification.from_pretrained(checkpoint, attn_implementation="sdpa")
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits
        return logits


class LogitsWithoutTypes(Logits):
    """The same for callers that pass no token types: the passage begins after the first [SEP]."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        ends = (input_ids == SEP).long()
        types = (ends.cumsum(dim=1) - ends).clamp(max=1) * attention_mask
        return super().forward(input_ids, attention_mask, types)


def export_onnx(model: nn.Module, inputs: Sequence[str], work: Path) -> tuple[Path, Path]:
    """Writes the model to `work` in float32, and with its linear layers dynamically quantised to int8.

    inputs: the inputs that it takes, a prefix of INPUTS.
    """
    float_path, int8_path = work / "float32.onnx", work / "int8.onnx"
    example = torch.ones(len(inputs), 2, 12, dtype=torch.int64)  # separate, as a repeated tensor would become one input
    example[1, 1, 8:] = 0  # an all-ones mask would be dropped
    shape = {0: torch.export.Dim("pairs", min=1, max=1024), 1: torch.export.Dim("tokens", min=2, max=MAX_POSITIONS)}
    torch.onnx.export(
        model,
        tuple(example),
        str(float_path),
        input_names=list(inputs),
        output_names=["logits"],
        dynamic_shapes=dict.fromkeys(inputs, shape),
        dynamo=True,
        opset_version=23,  # has an Attention operator, faster in ONNX Runtime than its parts
        external_data=False,
        verbose=False,
    )
    exported = onnx.load(float_path)
    del exported.graph.value_info[:]  # some shapes there are wrong, which would stop quantising
    onnx.save(exported, float_path)
    quantize_dynamic(float_path, int8_path, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"])
    return float_path, int8_path


def open_onnx(path: Path) -> Callable[[Batch], Scores]:
    """Returns a function from a batch to the output of a file that takes INPUTS, run by ONNX Runtime."""
    options = SessionOptions()
    options.intra_op_num_threads = NUM_THREADS
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(batch: Batch) -> Scores:
        output: Scores = session.run(None, dict(zip(INPUTS, batch, strict=True)))[0]
        return output

    return run

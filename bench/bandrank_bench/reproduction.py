"""The papers' comparisons at our scale: systems trained alike, then compared on test splits that no training saw.

Run as `python -m bandrank_bench reproduction windows|precomputing --data FOLDER --groups FILE`, with a folder of
collections in BEIR layout, and groups of their training splits (`python -m bandrank_training mine
training/recipes/mine-reproduction.toml`). `windows`: cross-encoders by window, fine-tuned from one with full attention,
as in the paper (Schlatt et al. 2024, section 3.5). `precomputing`: scorers that precompute, each from all-MiniLM-L6-v2.
A stopped run can be resumed; its files are in --runs.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandrank.models.plain import parse
from bandrank_bench import machine
from bandrank_bench.output import bullets, say, write_page
from bandrank_training import evaluation
from bandrank_training.comparison import compare
from bandrank_training.recipe import TrainingRecipe
from bandrank_training.results import Evaluation, read_evaluation
from bandrank_training.training import Trainer

FULL = {"window": None}
ASYMMETRIC = {"query_to_cls": False, "query_to_candidate": False}
WINDOWS = (64, 16, 4, 1, 0)
LAST_THREE = [3, 4, 5]
ALL_SIX = [0, 1, 2, 3, 4, 5]
LIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "bi-encoder": ("bi_encoder", {}),
    "poly-64": ("poly_encoder", {"num_codes": 64}),
    "colbert": ("colbert", {}),
    "mix-a": ("mix_encoder", {"interaction_layers": [5]}),
    "mix-b": ("mix_encoder", {"interaction_layers": LAST_THREE}),
    "mix-c": ("mix_encoder", {"interaction_layers": LAST_THREE, "num_embeddings": 2, "pool": "last"}),
    "mix-b-k4": ("mix_encoder", {"interaction_layers": LAST_THREE, "num_embeddings": 4}),
    "mix-b-codes": ("mix_encoder", {"interaction_layers": LAST_THREE, "strategy": "C"}),
    "mix-b-all": ("mix_encoder", {"interaction_layers": ALL_SIX}),
}


@dataclass(frozen=True)
class TestSet:
    """A split of a collection, with candidates from a run of this name, or else from judged pools."""

    collection: str
    split: str
    run: str = ""


TEST_SETS = (
    TestSet("squad", "test2k", "bm25.test2k.trec.gz"),
    TestSet("nq-mini", "test", "bm25.test.trec.gz"),
    TestSet("scifact", "test", "bm25.test.trec.gz"),
    TestSet("selqa", "test"),
    TestSet("medquad", "test", "bm25.test.trec.gz"),
    TestSet("cranfield", "test", "bm25.all.trec.gz"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains and measures the systems that are missing, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", choices=("windows", "precomputing"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--groups", type=Path, required=True)
    parser.add_argument("--start", help="a cross-encoder for all windows to start from, in place of --start-steps")
    parser.add_argument("--start-steps", type=int, default=800, help="steps with full attention (default: 800)")
    parser.add_argument("--steps", type=int, default=500, help="steps with each window after that (default: 500)")
    parser.add_argument("--light-steps", type=int, default=200, help="steps of scorers that precompute (default: 200)")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="(default: 64 16 4 1 0)")
    parser.add_argument("--queries", type=int, default=300, help="the most of each collection (default: 300)")
    parser.add_argument("--depth", type=int, default=30, help="the most candidates of a query (default: 30)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of training and evaluation"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduction"))
    parser.add_argument("--out", type=Path, help="(default: docs/reproduction-TABLE.md)")
    args = parser.parse_args(arguments)
    if args.start and args.table != "windows":
        parser.error("--start is for windows")
    train_all, describe = (cross_encoders, of_windows) if args.table == "windows" else (precomputing, of_precomputing)
    evaluations = list(measured(args, list(train_all(args))))
    table = compare(evaluations)
    if args.table == "windows":
        windows = compare([each for each in evaluations if each.system != "full"])
        table = f"{table}\nThe windows alone, compared with the first of them:\n\n{windows}"
    write_page(args.out or Path(f"docs/reproduction-{args.table}.md"), describe(args, table))
    return 0


def cross_encoders(args: argparse.Namespace) -> Iterator[str]:
    """Trains the cross-encoders and yields their folders, the baseline first."""
    full = {"architecture": "cross_encoder", "config": {"pattern": FULL}}
    start = args.start or train(args, "full-start", full, args.start_steps)
    yield train(args, "full", {"start": start, "config": {"pattern": FULL}}, args.steps)
    for window in args.windows:
        pattern = {"window": window} | ASYMMETRIC
        yield train(args, f"w{window}", {"start": start, "config": {"pattern": pattern}}, args.steps)


def precomputing(args: argparse.Namespace) -> Iterator[str]:
    """Trains the scorers that precompute and yields their folders, the baseline first."""
    for name, (architecture, config) in LIGHT.items():
        yield train(args, name, {"architecture": architecture, "config": config}, args.light_steps)


def train(args: argparse.Namespace, name: str, model: dict[str, Any], steps: int) -> str:
    """Trains a system, or resumes; returns its folder. All systems read the same groups in the same order."""
    out = args.runs / name
    values = {
        "out": str(out),
        "precision": args.dtype,
        "model": model,
        "data": {"groups": [str(args.groups)], "group_size": 8, "batch_rows": 4096, "max_candidate_tokens": 200},
        "losses": [{"name": "contrastive"}, {"name": "distil", "teacher": {"minilm": 20.0, "bm25": 0.4}}],
        "optimiser": {"steps": steps, "learning_rate": 1e-4, "warmup_steps": steps // 10, "decay_steps": steps // 2},
    }
    recipe: TrainingRecipe = parse(TrainingRecipe, values)
    trainer = Trainer(recipe)
    if trainer.progress.step < steps:
        say(f"training {name}")
        trainer.run()
    return str(out)


def measured(args: argparse.Namespace, folders: Sequence[str]) -> Iterator[Evaluation]:
    """Measures every system on every collection; reads earlier results."""
    parser = argparse.ArgumentParser()
    evaluation.add_arguments(parser)
    for folder in folders:
        for test in TEST_SETS:
            collection, out = args.data / test.collection, Path(folder) / f"top-{args.depth}-of-{args.queries}"
            kind = "run" if test.run else "pool"
            result = out / f"{collection.name}.{test.split}.{kind}.{Path(folder).name}.json"
            if not result.exists():
                say(f"measuring {folder} on {test.collection}")
                source = ["--run", str(collection / "runs" / test.run)] if test.run else ["--pool"]
                rest = ["--split", test.split, "--limit", str(args.queries), "--depth", str(args.depth)]
                rest += ["--dtype", args.dtype, "--out", str(out)]
                evaluation.run(parser.parse_args([folder, str(collection), *source, *rest]))
            yield read_evaluation(result)


def of_windows(args: argparse.Namespace, table: str) -> str:
    """The page on windows."""
    start = f"From all-MiniLM-L6-v2: {args.start_steps} steps with full attention, then"
    if args.start:
        start = f"From {args.start}, with the window that it was trained with:"
    return f"""# Windows, trained alike

How cross-encoders with windows of different widths rank, if they are trained alike.

- `full`: full attention
- `w16`: a window of 16 tokens on each side, sparse and asymmetric: queries see neither [CLS] nor candidates

**Training.** {start} {args.steps} steps with each pattern, all on the same groups, 4,096 rows a step. The pattern of
the start goes on; the others have this many steps to learn theirs.

{how(args)}
{table}
{bullets(machine.describe())}
"""


def of_precomputing(args: argparse.Namespace, table: str) -> str:
    """The page on precomputing."""
    return f"""# Scorers that precompute, trained alike

How nine scorers that precompute rank, if they are trained alike.

- `mix-a`, `mix-b`, `mix-c`: the paper's MixEncoders, with interaction in the last layer, in the last three, and in the
  last three with two context embeddings, of which the last is the hint
- `mix-b-k4`: `mix-b` with four context embeddings
- `mix-b-codes`: `mix-b` whose context embedding comes from learnt codes (strategy C instead of S)
- `mix-b-all`: `mix-b` with interaction in all six layers

**Training.** From all-MiniLM-L6-v2, {args.light_steps} steps each, all on the same groups. What is new in an
architecture starts at random; the bi-encoder has nothing new.

{how(args)}
{table}
{bullets(machine.describe())}
"""


def how(args: argparse.Namespace) -> str:
    """The section on the method."""
    return f"""**Measuring.** At most {args.queries} queries of each collection, with {args.depth} candidates of
a run for each; of selqa, the judged ones. Training and measuring are in {args.dtype}.

**Reading.** Compare the figures with each other, not with what these architectures can do: the budgets are small, and
the papers train for 100,000 steps.

Written by `python -m bandrank_bench reproduction {args.table}`.
"""

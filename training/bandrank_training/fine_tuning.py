"""fine-tune: trains a cross-encoder further on a hundred or more judged queries of your own, in minutes on a CPU.

A query's candidates are the documents that BM25 finds, as in a search, and those judged relevant. The scorer learns
from the labels and from its own earlier scores, so that it keeps what it knows. Queries set apart from training choose
between the scorer as it was, the trained one, and the mean of their weights (Wortsman et al. 2022, arXiv 2109.01903);
if training does not help, the scorer stays as it was. Where possible, the queries set apart share no relevant document
with those trained on; the command says so if they do.
"""

import argparse
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from bandrank.dtypes import FloatName
from bandrank.models.architectures import CrossEncoder
from bandrank.models.checkpoint import write_whole
from bandrank.models.loading import LoadedModel
from bandrank.models.scorer import Scorer
from bandrank_training.arguments import positive
from bandrank_training.averaging import averaged
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput, OtherRun
from bandrank_training.groups import read_groups
from bandrank_training.locking import locked
from bandrank_training.losses import LossRecipe
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.models import check_out, write_model
from bandrank_training.placement import CPU, Placement
from bandrank_training.recipe import DataRecipe, ModelRecipe, OptimiserRecipe, TrainingRecipe
from bandrank_training.scoring import score_offline
from bandrank_training.setting_apart import caution
from bandrank_training.significance import difference_p
from bandrank_training.start import load_start
from bandrank_training.training import OTHER_GROUPS, OTHER_WEIGHTS, STATE, Trainer
from bandrank_training.tuning import calibrated, intercept

GROUPS_FILE, DEV_FILE = "groups.jsonl.gz", "dev.jsonl.gz"
MINED, TRAINING = "mined", "training"  # folders within the one to write
BEFORE = "before"  # the name of the start's scores in the groups
DEPTH = 30  # candidates of a query, by BM25
MOST_TOKENS = 256  # of a candidate
MOST_QUERIES = 1000
MOST_DEV = 100  # queries to choose by, or a fifth of all if that is fewer
TRIED = 2  # scorers compared with the start
GROUPS, GROUP_SIZE = 4, 8  # queries in a step, and candidates of each
EPOCHS = 2
LEARNING_RATE = 1e-4
DISTIL = 0.3  # the weight of the start's scores; the labels have weight 1
DENOISE = 4.0  # candidates that scored this far above the relevant one count as unjudged
WORDS = "encoder.embeddings.word"  # frozen: so few texts contain few of the words
# How to name the differences between two runs, in terms of the command line.
OF_START = {"model.start": "--start", OTHER_WEIGHTS: "the weights of --start", "fusion": "the fusion of --start"}
OF_TRAINING = {"precision": "--precision"}
OF_GROUPS = {OTHER_GROUPS: "what was mined (by the texts, the judgements, --split, --most-queries or --dtype)"}


@dataclass(frozen=True)
class Task:
    """What to train, and on what.

    collection: as for `open_collection`.  split: of its judgements.  start: a cross-encoder, as for `load_start`.
    out: the folder to write.  most_queries: if there are more, so many are sampled.  precision: of the training.
    """

    collection: str
    split: str
    start: str
    out: Path
    most_queries: int = MOST_QUERIES
    precision: FloatName = "float32"


@dataclass(frozen=True)
class Choice:
    """A scorer that may be written. values: nDCG@10 of each query set apart.  sums: the scores of its candidates."""

    name: str
    scorer: Scorer
    sums: Sequence[Sequence[float]]
    values: Sequence[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("collection", metavar="COLLECTION", help="a folder in BEIR layout, or ir_datasets:ID")
    parser.add_argument("--split", default="train", help="qrels/SPLIT.tsv (default: train)")
    parser.add_argument("--start", default="sparse-w4", metavar="MODEL", help="a cross-encoder (default: sparse-w4)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/fine-tuned"),
        help="the folder to write, not the start's own (default: runs/fine-tuned)",
    )
    parser.add_argument(
        "--most-queries",
        type=positive,
        default=MOST_QUERIES,
        metavar="N",
        help=f"judged queries to use, drawn at random (default: {MOST_QUERIES:,})",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="the dtype to train in; bfloat16 takes two thirds of the time if the processor supports it",
    )
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fine-tunes, and prints how the choices rank the queries set apart. Raises what `fine_tune` raises."""
    task = Task(args.collection, args.split, args.start, args.out, args.most_queries, args.precision)
    chosen, choices = fine_tune(task, Placement.of(args))
    for each in choices:
        print(f"{each.name}: nDCG@10 {mean(each.values):.4f} of {len(each.values)} queries set apart")  # noqa: T201
    print(f"{chosen.name}{evidence(chosen, choices[0])}; the checkpoint is in {args.out}")  # noqa: T201 - the result
    if said := caution(read_groups(args.out / DEV_FILE), read_groups(args.out / GROUPS_FILE)):
        print(said)  # noqa: T201
    return 0


def fine_tune(task: Task, placement: Placement) -> tuple[Choice, list[Choice]]:
    """Writes the checkpoint that ranks the queries set apart best; returns that choice, and all choices. A killed run
    resumes where it stopped.

    placement: for the scores that teach and for the comparison.
    Raises BadCollection, BadCheckpoint, BadRecipe, and BadInput for a start that is not a cross-encoder or is in the
    folder to write, for candidates that are all relevant, and for a folder with another fine-tuning or a model,
    which are kept, or that another command writes into.
    """
    start = load_start(task.start)
    check_out(task.out, [start], resumed=(MINED,))
    check_out(task.out / TRAINING, [start], resumed=(STATE,))
    if not isinstance(start.scorer, CrossEncoder):
        raise BadInput(f"{task.start} is a {start.scorer.architecture}; fine-tune takes a cross-encoder, train any")
    with locked(task.out):
        mined = task.out / MINED
        groups, apart = mined / GROUPS_FILE, mined / DEV_FILE
        mine(_mining(task, start, groups, apart), placement, kept=mined)
        if all(min(group.labels or [0]) > 0 for group in read_groups(groups)):
            raise BadInput(
                f"{task.collection}: no query has an irrelevant candidate: none was judged, and BM25 finds none"
            )
        try:
            trainer = Trainer(_training(task, start, groups), device=placement.device)
        except OtherRun as error:
            said = f"{task.out} holds another fine-tuning, which differs in {_in_words(error.differing)}"
            raise BadInput(f"{said}; choose another --out, or delete {task.out / TRAINING}") from error
        for file in (groups, apart):  # only now, so that a finished run keeps its own
            write_whole(task.out / file.name, file.read_bytes())
        trainer.run()
        trained = replace(trainer.model, scorer=trainer.scorer.cpu())
        dev = DevSet.read(apart)
        chosen, choices = choose(start, trained, dev, placement)
        write_model(replace(start, scorer=_logits(chosen, dev)), task.out)
    return chosen, choices


def choose(
    start: LoadedModel, trained: LoadedModel, dev: DevSet, placement: Placement = CPU
) -> tuple[Choice, list[Choice]]:
    """Returns the best of the start, the mean of both models' weights, and the trained scorer; and all three, in this
    order. The first of equals wins.  placement: for the scores that are compared.
    """
    half = averaged([start, trained], [0.5, 0.5])
    fused = {start.fusion.scorer: start.fusion.weight} if start.fusion else {}
    choices = []
    for name, scorer in (("as it was", start.scorer), ("the mean of both", half), ("trained", trained.scorer)):
        offline = score_offline(replace(start, scorer=deepcopy(scorer).eval(), fusion=None), placement)  # modifies it
        sums = dev.sums(offline, fused)
        choices.append(Choice(name, scorer, sums, dev.by_query(sums)))
    return max(choices, key=lambda each: mean(each.values)), choices


def _mining(task: Task, start: LoadedModel, groups: Path, dev: Path) -> MiningRecipe:
    fast = {start.fusion.scorer: start.fusion.scorer} if start.fusion else {}
    return MiningRecipe(
        str(groups),
        (Source(task.collection, task.split, max_queries=task.most_queries),),
        teachers={BEFORE: task.start, **fast},
        depth=DEPTH,
        hard=DEPTH,
        random=0,
        max_tokens=MOST_TOKENS,
        dev_out=str(dev),
        dev_groups=MOST_DEV,
    )


def _training(task: Task, start: LoadedModel, groups: Path) -> TrainingRecipe:
    count = sum(group.has_relevant for group in read_groups(groups))
    steps = math.ceil(EPOCHS * count / GROUPS)
    teacher = {BEFORE: 1.0}
    return TrainingRecipe(
        out=str(task.out / TRAINING),
        model=ModelRecipe(start=task.start),
        data=DataRecipe(
            groups=(str(groups),),
            group_size=GROUP_SIZE,
            batch_groups=GROUPS,
            batch_rows=2 * GROUPS * GROUP_SIZE * MOST_TOKENS,  # so that batch_groups is the limit
            max_candidate_tokens=MOST_TOKENS,
        ),
        losses=(
            LossRecipe("contrastive", teacher=teacher, denoise=DENOISE),
            LossRecipe("distil", weight=DISTIL, teacher=teacher),
        ),
        optimiser=OptimiserRecipe(
            steps=steps,
            learning_rate=LEARNING_RATE,
            warmup_steps=math.ceil(steps / 10),
            decay_steps=math.ceil(2 * steps / 3),
            frozen=(WORDS,),
        ),
        fusion=start.fusion,
        precision=task.precision,
        checkpoint_minutes=1.0,
    )


def _in_words(differing: Sequence[str]) -> str:
    """Tells the user what differs between two fine-tunings. Another start implies other scores in the groups, so the
    groups are not mentioned as well.
    """
    of_groups = {} if OF_START.keys() & set(differing) else OF_GROUPS
    known = OF_START | OF_TRAINING | of_groups
    said = [known[name] for name in differing if name in known]
    return " and ".join(said) or "the settings of another version of bandrank"


def _logits(chosen: Choice, dev: DevSet) -> Scorer:
    """Adds the constant that makes the sigmoid of a score a probability; the start has one already. It is rounded, as
    scores depend on the batch.
    """
    if chosen.name == "as it was":
        return chosen.scorer
    flat = [score for row in chosen.sums for score in row]
    return calibrated(chosen.scorer, 1.0, round(intercept(flat, dev.relevant), 3))


def evidence(chosen: Choice, before: Choice) -> str:
    """States the gain and its p, which is multiplied by the number of scorers tried (Bonferroni)."""
    gains = [after - first for after, first in zip(chosen.values, before.values, strict=True)]
    if not any(gains):
        return ", for nothing was better"
    if len(gains) == 1:
        return f", {mean(gains):+.4f} on one query, which tells little"
    p = min(1.0, TRIED * difference_p(gains))
    return (
        f", {mean(gains):+.4f} on the queries that chose it, p = {p:.2g} of a paired t test, corrected for the choice"
    )

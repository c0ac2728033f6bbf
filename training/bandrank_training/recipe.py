"""The recipe of a training run: a TOML file, which is saved beside the result."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandrank.dtypes import FloatName
from bandrank.models.fusion import Fusion
from bandrank.models.plain import parse
from bandrank_training.errors import BadRecipe
from bandrank_training.losses import LossRecipe
from bandrank_training.model_losses import MODEL_LOSSES


@dataclass(frozen=True)
class ModelRecipe:
    """The scorer to train.

    start: the checkpoint whose weights it starts from; "all-MiniLM-L6-v2" needs no network.
    layers: the layers of the start to keep, from 0; by default all.
    words: a model with the same vocabulary, whose table of words replaces the start's.
    architecture, config: of the new scorer; without an architecture, the start itself is trained further.
    add_sentence_token: adds a token to the vocabulary that precedes each sentence of a candidate (QDS-Transformer).
    """

    start: str = "all-MiniLM-L6-v2"
    architecture: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    add_sentence_token: bool = False
    layers: tuple[int, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class DataRecipe:
    """The groups to train on, and how many of them a step reads.

    groups: files that `mine` wrote, read in turn, over and over.  group_size: candidates of a group: relevant ones, and
    others drawn anew each time.  batch_rows, batch_groups: the most token ids and groups of a step; a step has at least
    one group.  max_candidate_tokens: token ids read of a candidate, [CLS] and [SEP] included.
    encode_once: encodes each candidate once and keeps its representation, for runs that freeze the candidate encoder. A
    resumed run then matches an uninterrupted one only up to rounding, because it encodes candidates in other batches.
    without: domains of a mixture to leave out, for measuring on domains that training never saw.
    """

    groups: tuple[str, ...]
    group_size: int = 8
    max_relevant: int = 1
    batch_rows: int = 4096
    batch_groups: int = 10**9
    max_candidate_tokens: int = 256
    encode_once: bool = False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("groups must name a file that `mine` wrote")
        check_least(self, 1, "group_size", "batch_rows", "batch_groups", "max_candidate_tokens")
        check_least(self, 0, "max_relevant")


@dataclass(frozen=True)
class OptimiserRecipe:
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up, a constant rate, and linear decay over the last steps.

    steps, decay_steps: can be changed after a run has begun or finished, unless its rate has started to fall.
    max_norm: gradients are scaled down to this L2 norm.  clipped: prefixes of the names of parameters whose gradients
    are scaled, jointly; by default all.  frozen: prefixes of the names of parameters that are not trained.
    dropout: the share of values zeroed in the embeddings and in the outputs of attention and feed-forward layers, where
    these are trained; unlike in the papers' code, attention weights are not dropped.
    """

    steps: int
    learning_rate: float = 5e-5
    warmup_steps: int = 100
    decay_steps: int = 0
    weight_decay: float = 0.01
    max_norm: float = 1.0
    clipped: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        check_least(self, 1, "steps")
        check_least(self, 0, "learning_rate", "warmup_steps", "decay_steps", "weight_decay")
        if not self.max_norm > 0:  # 0 turns clipping off elsewhere, but would erase the gradients here
            raise ValueError(f"max_norm must be above 0, got {self.max_norm}; inf: gradients stay as they are")

    def rate(self, step: int) -> float:
        """The factor of `learning_rate` at a step, counted from 0."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = (self.steps - step) / self.decay_steps if self.decay_steps else 1.0
        return min(warm, max(0.0, min(1.0, left)))


@dataclass(frozen=True)
class DevRecipe:
    """Measurements during training: nDCG@10 of re-ranked judged groups that training never sees.

    groups: a file that `mine` wrote.  patience: how many measurements in a row may fail to improve; one more stops the
    run. None: any number.
    """

    groups: str
    every_steps: int = 500
    patience: int | None = None

    def __post_init__(self) -> None:
        check_least(self, 1, "every_steps")
        check_least(self, 0, "patience")


@dataclass(frozen=True)
class ModelLossRecipe:
    """A loss that compares the student with a teacher on the same texts, and its weight in the sum.

    teacher: a cross-encoder with full attention for `virt_maps` and `deformer_states`, a bi-encoder for `vectors`.
    """

    name: str
    teacher: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in MODEL_LOSSES:
            raise ValueError(f"model loss {self.name!r} is unknown; there are {', '.join(MODEL_LOSSES)}")
        check_least(self, 0, "weight")


@dataclass(frozen=True)
class TrainingRecipe:
    """A training run.

    out: the folder of its checkpoint, state, log and plot.  losses: training minimises their sum.
    fusion: the scorer learns what to add to another scorer's scores, which the groups have under its name. The sum also
    ranks dev, and candidates in the service, which reads the fusion from the checkpoint.
    """

    out: str
    model: ModelRecipe
    data: DataRecipe
    losses: tuple[LossRecipe, ...]
    optimiser: OptimiserRecipe
    model_losses: tuple[ModelLossRecipe, ...] = ()
    fusion: Fusion | None = None
    dev: DevRecipe | None = None
    seed: int = 1
    precision: FloatName = "float32"
    checkpoint_minutes: float = 5.0

    def __post_init__(self) -> None:
        if not self.losses and not self.model_losses:
            raise ValueError("a recipe needs at least one [[losses]]")
        check_least(self, 0, "checkpoint_minutes")
        if self.data.max_relevant == 0 and any(loss.learns_from_labels for loss in self.losses):
            raise ValueError("data: max_relevant must be at least 1 for a loss that learns from labels")
        if self.data.group_size == 1 and any(loss.name != "in_batch" for loss in self.losses):
            raise ValueError("data: group_size must be at least 2 for a loss that compares the candidates of a query")
        if not abs(self.seed) < 2**32:
            raise ValueError(f"seed must be below 2**32, got {self.seed}")
        if self.precision == "float16":
            raise ValueError("precision: float16 would need a scaled loss, which bfloat16 does without")
        if self.fusion is not None and any(loss.name == "in_batch" for loss in self.losses):
            raise ValueError("fusion: groups have no scores of other groups' candidates, which loss 'in_batch' needs")


def read_recipe(path: Path, kind: type = TrainingRecipe) -> Any:
    """Reads a recipe of class `kind` from a TOML file. Raises BadRecipe."""
    try:
        return parse(kind, tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise BadRecipe(f"{path}: {error.strerror}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecipe(f"{path}: {error}") from error


def check_least(recipe: object, least: int, *names: str) -> None:
    """Raises ValueError for a field that is neither None nor at least `least`."""
    for name in names:
        if (value := getattr(recipe, name)) is not None and not value >= least:  # as nan is not
            raise ValueError(f"{name} must be at least {least}, got {value}")

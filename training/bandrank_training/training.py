"""train: trains a scorer by a recipe; if the run is killed, the same command resumes it as if nothing had happened."""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm
from tqdm import tqdm

from bandrank.models import checkpoint
from bandrank.models.batch import ScoreBatch
from bandrank.models.checkpoint import whole, write_whole
from bandrank.models.hashing import parts_of_weights
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank_kernels.arrays import offsets
from bandrank_training.ahead import batches_for
from bandrank_training.batches import GroupReader, TrainingBatch, of_groups
from bandrank_training.contents import digest, of_model
from bandrank_training.dev import DevSet
from bandrank_training.dropout import add_dropout
from bandrank_training.errors import BadRecipe, OtherRun
from bandrank_training.locking import locked
from bandrank_training.losses import LOSSES
from bandrank_training.model_losses import MODEL_LOSSES
from bandrank_training.models import build, check_out, load_teacher, write_model
from bandrank_training.plot import plot_log
from bandrank_training.recipe import TrainingRecipe, read_recipe
from bandrank_training.scoring import OfflineScorer

STATE, LOG, PLOT, RECIPE = "state.pt", "log.jsonl", "training.svg", "recipe.toml"
OTHER_WEIGHTS, OTHER_GROUPS = "the weights of model.start or of a teacher", "what data.groups hold"


@dataclass
class Progress:
    """How far a run has got, apart from its weights.

    best, best_step: the best dev measure and its step.  since_best: measurements since then.  log: one entry per step
    or measurement.
    """

    step: int = 0
    groups_read: int = 0
    best: float = float("-inf")
    best_step: int = 0
    since_best: int = 0
    log: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """A run of a recipe, resumed from the state in its folder if there is one.

    Raises BadRecipe, BadGroups, BadCollection, BadCheckpoint, and BadInput for the folder of the start or of a teacher.
    """

    def __init__(self, recipe: TrainingRecipe, *, device: torch.device | None = None) -> None:
        self.recipe = recipe
        self.out = Path(recipe.out)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build(recipe.model, seed=recipe.seed)
        of_start = of_model(self.model)
        # float32, whatever the start was saved in: half precision would lose small steps.
        self.scorer = self.model.scorer.train().to(self.device, torch.float32)
        self.progress = Progress()
        trained = self._freeze()
        settings = recipe.optimiser
        self._clipped = self._named(settings.clipped, "clipped") if settings.clipped else trained
        if settings.dropout and not add_dropout(self.scorer, settings.dropout):
            raise BadRecipe("dropout: nothing that it follows is trained")
        self.optimiser = torch.optim.AdamW(
            trained, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.reader = GroupReader(recipe.data, TextEncoder(self.model.tokenizer, self.scorer), seed=recipe.seed)
        self._offline = OfflineScorer.in_training(self.model)
        self._fused = {recipe.fusion.scorer: recipe.fusion.weight} if recipe.fusion is not None else {}
        self.reader.check(recipe.losses, self._fused)
        teachers = {name: load_teacher(name, self.device) for name in {x.teacher for x in recipe.model_losses}}
        read = [replace(self.model, fusion=recipe.fusion), *teachers.values()]
        check_out(self.out, read, words=recipe.model.words, resumed=(STATE, RECIPE))
        self._model_losses = [
            (each, MODEL_LOSSES[each.name](teachers[each.teacher], recipe.data.max_candidate_tokens))
            for each in recipe.model_losses
        ]
        self.dev = DevSet.read(Path(recipe.dev.groups)) if recipe.dev else None
        of_teachers = (parts_of_weights(teachers[name].scorer.state_dict()) for name in sorted(teachers))
        self._made_of = {
            "weights": digest(chain([of_start], *of_teachers)),
            "contents": self.reader.contents,
            "dev": of_groups([Path(recipe.dev.groups)], self.dev.texts) if recipe.dev and self.dev else "",
        }
        self._representations: dict[str, Ragged] = {}
        self._resume()

    def run(self) -> Progress:
        """Trains to the recipe's last step, or until the dev measure stops improving, and returns the progress.

        Leaves in the folder the checkpoint that is best on dev, which may be the start, or without dev the last one.
        Raises BadRecipe when the loss is no longer finite; the state in the folder is then an earlier one.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        steps = self.recipe.optimiser.steps
        saved = time.monotonic()
        batches = batches_for(self.device, self.reader, self.progress.groups_read)
        with tqdm(total=steps, initial=self.progress.step, desc=self.out.name, unit="step") as bar:
            if self.dev and self.progress.best == float("-inf"):
                self._measure(bar)  # the start is kept if no step improves on it
            while self.progress.step < steps and not self._is_over():
                entry = self._step(next(batches))
                bar.update()
                bar.set_postfix(loss=f"{entry['loss']:.3f}")
                if self.dev and (self.progress.step % self.recipe.dev.every_steps == 0 or self.progress.step == steps):  # type: ignore[union-attr]  # a dev set has its recipe
                    self._measure(bar)
                    self._save_state()
                    saved = time.monotonic()
                elif time.monotonic() - saved > 60 * self.recipe.checkpoint_minutes:
                    self._save_state()
                    saved = time.monotonic()
        self._save_state()
        if self.dev is None:
            self._save_checkpoint()
            plot_log(self.progress.log, self.out / PLOT)
        return self.progress

    def _step(self, read: TrainingBatch) -> dict[str, float]:
        settings, start = self.recipe.optimiser, time.monotonic()
        rate = settings.rate(self.progress.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * settings.learning_rate
        if settings.dropout:
            torch.manual_seed(self.recipe.seed * 10**9 + self.progress.step)  # a resumed run drops the same values
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            losses = dict(self._losses(read))
        loss = torch.stack(list(losses.values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        norm = get_total_norm([each.grad for each in self.scorer.parameters() if each.grad is not None])
        clip_grad_norm_(self._clipped, settings.max_norm)
        if not math.isfinite(loss.item() + norm.item()):
            numbers = f"loss {loss.item()}, gradient {norm.item()}"
            smaller = "learning_rate" if self.progress.step else "weight of a loss or of a teacher"
            raise BadRecipe(f"step {self.progress.step + 1}: {numbers}; a smaller {smaller} may help")
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.progress.step += 1
        self.progress.groups_read = read.groups_read
        entry = {
            "step": self.progress.step,
            "loss": loss.item(),
            **{name: value.item() for name, value in losses.items()},
            "gradient_norm": norm.item(),
            "rate": rate,
            "rows": len(read.batch.candidates.values) + len(read.batch.queries.values),
            "seconds": round(time.monotonic() - start, 3),
        }
        self.progress.log.append(entry)
        return entry

    def _losses(self, read: TrainingBatch) -> Iterator[tuple[str, Tensor]]:
        batch = self._with_representations(read) if self.recipe.losses else read.batch
        scores: dict[bool, Tensor] = {}
        seen: Counter[str] = Counter()
        for recipe in self.recipe.losses:
            seen[recipe.name] += 1
            name = recipe.name if seen[recipe.name] == 1 else f"{recipe.name} {seen[recipe.name]}"
            everyone = recipe.name == "in_batch"
            if everyone not in scores:
                scores[everyone] = self._score(batch, everyone=everyone)
            read_scores = read.everyone_scored if everyone else read.scored
            scored = read_scores(scores[everyone]).plus(self._fused)
            yield name, recipe.weight * LOSSES[recipe.name](scored, recipe)
        for each, model_loss in self._model_losses:
            yield each.name, each.weight * model_loss(self.scorer, read.batch, read.queries, read.texts)

    def _score(self, batch: ScoreBatch, *, everyone: bool) -> Tensor:
        """The scores of each query's candidates, (C,), or of the batch's candidates for every query, (Q * C,).

        They are float32, even where autocast computes the last product in bfloat16, because losses subtract them.
        """
        if not everyone:
            return self.scorer.score(batch).float()
        count = len(batch.queries)
        owned = offsets([len(batch.candidates)] * count)
        return self.scorer.score(ScoreBatch(batch.queries, Ragged.joined([batch.candidates] * count), owned)).float()

    def _with_representations(self, read: TrainingBatch) -> ScoreBatch:
        batch = read.batch
        if not self.recipe.data.encode_once:
            return ScoreBatch(batch.queries, self.scorer.encode_candidates(batch.candidates), batch.cu_candidates)
        missing = [index for index, text in enumerate(read.texts) if text not in self._representations]
        if missing:
            with torch.no_grad():
                tokens = Ragged.from_tensors([batch.candidates[index] for index in missing])
                encoded = self.scorer.encode_candidates(tokens)
            for position, index in enumerate(missing):
                one = encoded.part(slice(position, position + 1))
                self._representations[read.texts[index]] = replace(one, values=one.values.clone())
        candidates = Ragged.joined([self._representations[text] for text in read.texts])
        return ScoreBatch(batch.queries, candidates, batch.cu_candidates)

    def _measure(self, bar: "tqdm[NoReturn]") -> None:
        """Measures on dev, prints the measure above the bar, and saves the checkpoint if it is the best."""
        assert self.dev is not None, "measuring without a dev set. This is a bug."
        progress = self.progress
        if not self.recipe.data.encode_once:
            self._offline.forget()
        self.scorer.eval()
        by_area = self.dev.by_area(self.dev.sums(self._offline, self._fused))
        self.scorer.train()
        measure = mean(by_area.values())
        areas = {f"dev {area}": value for area, value in by_area.items()} if len(by_area) > 1 else {}
        progress.log.append({"step": progress.step, "dev": measure, **areas})
        bar.write(f"step {progress.step}: dev nDCG@10 {measure:.4f}")
        if measure > progress.best:
            progress.best, progress.best_step, progress.since_best = measure, progress.step, 0
            self._save_checkpoint()
        else:
            progress.since_best += 1
        plot_log(progress.log, self.out / PLOT)

    def _is_over(self) -> bool:
        patience = self.recipe.dev.patience if self.recipe.dev else None
        return patience is not None and self.progress.since_best > patience

    def _freeze(self) -> list[torch.nn.Parameter]:
        """Freezes parameters and returns the others. Raises BadRecipe if the recipe freezes unknown ones, or all."""
        for parameter in self._named(self.recipe.optimiser.frozen, "frozen"):
            parameter.requires_grad = False
        trained = [parameter for parameter in self.scorer.parameters() if parameter.requires_grad]
        if not trained:
            raise BadRecipe("frozen: no parameter is left to train")
        if self.recipe.data.encode_once:
            if not self.scorer.precomputes:
                raise BadRecipe(f"encode_once: a {self.scorer.architecture} encodes nothing ahead")
            any_text, _ = self.scorer.candidate_template.apply([0])
            if self.scorer.encode_candidates(Ragged.from_token_ids([any_text])).values.requires_grad:
                raise BadRecipe("encode_once: what encodes candidates is trained; freeze it, or encode each time")
        return trained

    def _named(self, prefixes: tuple[str, ...], setting: str) -> list[torch.nn.Parameter]:
        """The parameters whose names start with one of the prefixes. Raises BadRecipe for a prefix without any."""
        named = dict(self.scorer.named_parameters())
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in named):
                raise BadRecipe(
                    f"{setting}: no parameter starts with {prefix!r}; there are {', '.join(sorted(named)[:8])}"
                )
        return [parameter for name, parameter in named.items() if name.startswith(prefixes)]

    def _save_checkpoint(self) -> None:
        write_model(replace(self.model, fusion=self.recipe.fusion), self.out)

    def _save_state(self) -> None:
        """Saves all that another process needs to resume. Replaces the old file once the new one is complete."""
        state = {
            "recipe": asdict(self.recipe),
            **self._made_of,
            "progress": asdict(self.progress),
            "scorer": self.scorer.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with whole(self.out / STATE) as partial:
            try:
                torch.save(state, partial)
            except RuntimeError as error:  # torch's, which does not say why
                raise OSError(f"{partial} cannot be written; the disk may be full ({error})") from error
        lines = "".join(json.dumps(entry) + "\n" for entry in self.progress.log)
        write_whole(self.out / LOG, lines.encode())

    def _resume(self) -> None:
        path = self.out / STATE
        if not path.is_file():
            return
        with path.open("rb") as file:
            try:
                state: dict[str, Any] = torch.load(file, map_location=self.device, weights_only=True)
            except Exception as error:  # damaged bytes can be instructions that fail in any way
                said = str(error).partition("\n")[0] or "it is empty"
                raise BadRecipe(f"{path} cannot be read; delete it to begin anew ({said})") from error
        if "recipe" not in state:
            raise BadRecipe(f"{path} is not of a training run; choose another `out`")
        changed = _changed(state["recipe"], asdict(self.recipe))
        same = {name: state.get(name) == now for name, now in self._made_of.items()}
        if same["contents"]:
            changed = [name for name in changed if name != "data.groups"]  # the same groups, in files of other names
        if not same["weights"] and not changed:  # changed settings are named already
            changed.append(OTHER_WEIGHTS)
        changed += [] if same["contents"] else [OTHER_GROUPS]
        if changed:
            raise OtherRun(path, changed)
        self.progress = Progress(**state["progress"])
        settings, then = self.recipe.optimiser, state["recipe"]["optimiser"]
        planned = replace(settings, steps=then["steps"], decay_steps=then["decay_steps"])
        if any(planned.rate(step) != settings.rate(step) for step in range(self.progress.step)):
            raise BadRecipe(
                f"{path}: the learning rate would jump; go on with steps = {planned.steps} and decay_steps = "
                f"{planned.decay_steps}, and then name {self.out} as model.start of a recipe with another `out`"
            )
        self.scorer.load_state_dict(state["scorer"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.progress.step >= settings.steps:  # a finished run keeps its best measure, and what it was measured on
            self._made_of["dev"] = state.get("dev", "")
        elif self.recipe.dev and not same["dev"]:
            self.progress.best, self.progress.since_best = float("-inf"), 0  # measured on other groups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("recipe", type=Path, help="a TOML file; training/recipes/ has some")


def run(args: argparse.Namespace) -> int:
    """Trains, and copies the recipe beside the result."""
    recipe: TrainingRecipe = read_recipe(args.recipe)
    trainer = Trainer(recipe)
    folder = trainer.model.folder
    further = recipe.model.architecture is None and checkpoint.is_checkpoint(folder)
    if further and recipe.fusion is None and (fusion := checkpoint.load_fusion(folder)):
        adds = f"{recipe.model.start} adds to {fusion.weight:g} times the scores of {fusion.scorer}"
        print(f"{adds}; without [fusion] the result stands alone", file=sys.stderr)  # noqa: T201
    with locked(trainer.out):
        copy = trainer.out / RECIPE
        if not (copy.exists() and copy.samefile(args.recipe)):
            write_whole(copy, args.recipe.read_bytes())
        progress = trainer.run()
    best = ""
    if recipe.dev:
        which = f"after step {progress.best_step}" if progress.best_step else "of the start, which no step made better"
        best = f", best dev nDCG@10 {progress.best:.4f} {which}"
    print(f"{progress.step} steps{best}; the checkpoint is in {trainer.out}")  # noqa: T201 - the result
    return 0


def _changed(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names the changed settings that keep a run from being resumed. Another dev set or more steps do not."""
    changed = [name for name in ("losses", "model_losses", "fusion", "seed", "precision") if then[name] != now[name]]
    for part in ("model", "data", "optimiser"):
        old = then[part]  # an older state may lack settings
        changed += [f"{part}.{name}" for name, new in now[part].items() if (old.get(name) or None) != (new or None)]
    return [name for name in changed if name not in {"optimiser.steps", "optimiser.decay_steps"}]

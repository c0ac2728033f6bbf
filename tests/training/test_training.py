"""Training: a run that is killed ends as if it had not been; what is frozen, kept, measured and refused."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import save_bi_encoder, tiny_cross_encoder, tiny_tokenizer
from support.precomputing import tiny_mix_encoder
from support.tokenizer import TOKENIZER_FILE
from support.training import toml, write_toy

from bandrank.models import checkpoint
from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.fusion import Fusion
from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import load_model
from bandrank.models.plain import parse
from bandrank.models.texts import TextEncoder
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.recipe import BadRecipe, TrainingRecipe
from bandrank_training.scoring import OfflineScorer, Question
from bandrank_training.training import Trainer

HANG_S = 120  # far beyond what a slow machine takes to start a process
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection, groups.jsonl, dev.jsonl.gz, and three tiny models to start from."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder)
    save_bi_encoder(folder / "bi_encoder", num_layers=3)
    for name, scorer in {
        "cross_encoder": tiny_cross_encoder(pattern=sparse(4)),
        "mix_encoder": tiny_mix_encoder(similarity="cosine"),
    }.items():
        checkpoint.save(scorer, folder / name, tokenizer=TOKENIZER_FILE)
    return folder


def values(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> dict[str, Any]:
    """A recipe of six steps as plain values; dicts among the changes are put into its parts."""
    plain: dict[str, Any] = {
        "out": str(out),
        "model": {"start": str(toy / start)},
        "data": {"groups": [str(toy / "groups.jsonl")], "group_size": 4, "batch_rows": 150},
        "losses": [{"name": "contrastive", "temperature": 0.5}, {"name": "distil", "teacher": {"good": 1.0}}],
        "optimiser": {"steps": 6, "learning_rate": 1e-3, "warmup_steps": 2},
    }
    for name, value in changes.items():
        plain[name] = plain.get(name, {}) | value if isinstance(value, dict) else value
    return plain


def recipe(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> TrainingRecipe:
    """`values` as a recipe."""
    parsed: TrainingRecipe = parse(TrainingRecipe, values(toy, out, start, **changes))
    return parsed


def train(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> Trainer:
    """A run, to its end."""
    trainer = Trainer(recipe(toy, out, start, **changes), device=CPU)
    trainer.run()
    return trainer


def losses(trainer: Trainer) -> list[dict[str, float]]:
    """The log without its times."""
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in trainer.progress.log]


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    """To the bit, the optimiser's moments too."""
    for ours, theirs in zip(one.scorer.state_dict().items(), other.scorer.state_dict().items(), strict=True):
        assert torch.equal(ours[1], theirs[1]), ours[0]
    states = [trainer.optimiser.state_dict()["state"] for trainer in (one, other)]
    for index, moments in states[0].items():
        for name, moment in moments.items():
            assert torch.equal(moment, states[1][index][name])


def killed_in_mid_run(plain: dict[str, Any], folder: Path) -> int:
    """Runs `train` in a process of its own, kills it after its third saved state, returns the steps logged."""
    file, log = folder / "recipe.toml", Path(plain["out"]) / "log.jsonl"
    file.write_text(toml(plain | {"checkpoint_minutes": 0.0}), encoding="utf-8")
    command = [sys.executable, "-m", "bandrank_training", "train", str(file)]
    with subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        give_up = time.monotonic() + HANG_S
        while not (log.exists() and len(log.read_text().splitlines()) >= 3):
            assert time.monotonic() < give_up
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return len(log.read_text().splitlines())


@pytest.mark.parametrize(
    ("start", "named"),
    [("cross_encoder", [{"name": "ranknet"}]), ("mix_encoder", [{"name": "in_batch"}, {"name": "contrastive"}])],
)
def test_a_killed_run_ends_as_if_it_had_not_been(
    toy: Path, tmp_path: Path, start: str, named: list[dict[str, Any]]
) -> None:
    """Losses step for step, weights, dev measures and moments to the bit, after SIGKILL at no particular moment."""
    dev = {"groups": str(toy / "dev.jsonl.gz"), "every_steps": 10}
    endless = values(toy, tmp_path / "killed", start, losses=named, optimiser={"steps": 10**6}, dev=dev)
    steps = 5 + killed_in_mid_run(endless, tmp_path)
    changes = {"losses": named, "optimiser": {"steps": steps}, "dev": dev}

    resumed = Trainer(recipe(toy, tmp_path / "killed", start, **changes), device=CPU)
    assert 3 <= resumed.progress.step < steps
    resumed.run()
    whole = train(toy, tmp_path / "whole", start, **changes)

    assert losses(resumed) == losses(whole)
    assert whole.progress.log[-1].keys() == {"step", "dev"}
    assert_same_weights(resumed, whole)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_run_can_be_made_longer(toy: Path, tmp_path: Path) -> None:
    """It goes on as if it had been meant so; run again as it is, it does nothing."""
    train(toy, tmp_path / "longer", optimiser={"steps": 3})
    longer = train(toy, tmp_path / "longer", optimiser={"steps": 7})
    again = train(toy, tmp_path / "longer", optimiser={"steps": 7})
    whole = train(toy, tmp_path / "whole", optimiser={"steps": 7})

    assert losses(longer) == losses(whole)
    assert asdict(again.progress) == asdict(longer.progress)
    assert_same_weights(longer, whole)
    log = [json.loads(line) for line in (tmp_path / "longer" / "log.jsonl").read_text().splitlines()]
    assert log == longer.progress.log
    assert (tmp_path / "longer" / "training.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seed": 2}, "seed differ"),
        ({"losses": [{"name": "ranknet"}], "precision": "bfloat16"}, "losses, precision differ"),
        (
            {"data": {"batch_rows": 151}, "optimiser": {"learning_rate": 2e-3}},
            "data.batch_rows, optimiser.learning_rate",
        ),
        ({"optimiser": {"frozen": ["head"], "steps": 9}}, "optimiser.frozen differ"),
        ({"model": {"config": {"max_tokens": 500}}}, "model.config differ"),
    ],
)
def test_a_state_of_another_run_is_refused(toy: Path, tmp_path: Path, changes: dict[str, Any], names: str) -> None:
    """With the names of what differs."""
    train(toy, tmp_path / "out", optimiser={"steps": 1})

    with pytest.raises(BadRecipe, match=rf"state\.pt is of another run: {names}.*choose another `out`"):
        Trainer(recipe(toy, tmp_path / "out", **changes), device=CPU)


@pytest.mark.parametrize(("patience", "steps"), [(0, 2), (2, 4), (None, 5)])
def test_a_run_that_gets_no_better_ends(toy: Path, tmp_path: Path, patience: int | None, steps: int) -> None:
    """With a rate of 0 the first measurement stays the best; `patience` more may pass, and one ends the run."""
    dev = {"groups": str(toy / "dev.jsonl.gz"), "every_steps": 1} | ({} if patience is None else {"patience": patience})
    optimiser = {"steps": 5, "learning_rate": 0.0}
    trainer = train(toy, tmp_path / "out", optimiser=optimiser, dev=dev)
    again = train(toy, tmp_path / "out", optimiser=optimiser, dev=dev)

    assert (trainer.progress.step, again.progress.step) == (steps, steps)


def test_the_best_checkpoint_is_kept(toy: Path, tmp_path: Path) -> None:
    """What loads from the folder measures on dev, and scores there, what the best of the run did."""
    dev = {"groups": str(toy / "dev.jsonl.gz"), "every_steps": 1}
    trainer = train(toy, tmp_path / "out", optimiser={"steps": 6, "learning_rate": 2e-2}, dev=dev)
    measured = {entry["step"]: entry["dev"] for entry in trainer.progress.log if "dev" in entry}
    best = max(measured, key=measured.__getitem__)
    assert best < 6, "the run's last step is its best; this test needs another rate"
    until = train(toy, tmp_path / "until", optimiser={"steps": best, "learning_rate": 2e-2})

    model = load_model(str(tmp_path / "out"))

    assert trainer.progress.best == measured[best]
    found = DevSet.read(toy / "dev.jsonl.gz").measure(
        OfflineScorer.as_it_is(TextEncoder(model.tokenizer, model.scorer))
    )
    assert found == pytest.approx(measured[best], abs=1e-12)
    for name, weight in model.scorer.state_dict().items():
        assert torch.equal(weight, until.scorer.state_dict()[name])
    asked = [Question("the of", ["man is new", "no", ""])]
    assert list(OfflineScorer(model).score(asked)) == [
        pytest.approx(next(OfflineScorer.as_it_is(TextEncoder(tiny_tokenizer(), until.scorer)).score(asked)), abs=1e-5)
    ]


def test_another_dev_set_starts_its_own_best(toy: Path, tmp_path: Path) -> None:
    """A measure of other groups cannot be beaten, or is beaten too easily."""
    train(toy, tmp_path / "out", dev={"groups": str(toy / "dev.jsonl.gz")})
    same = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(toy / "dev.jsonl.gz")}), device=CPU)
    other = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(toy / "groups.jsonl")}), device=CPU)

    assert same.progress.best > 0
    assert other.progress.best == -torch.inf


def test_frozen_parameters_stay(toy: Path, tmp_path: Path) -> None:
    """Those whose names start so, and all others change."""
    frozen = ["encoder.embeddings", "encoder.layers.0."]
    before = load_model(str(toy / "mix_encoder")).scorer.state_dict()
    after = train(toy, tmp_path / "out", "mix_encoder", optimiser={"frozen": frozen, "steps": 2}).scorer.state_dict()

    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    kept = {name for name in after if name.startswith(tuple(frozen))}
    assert kept
    # Queries do not run the encoder's last layer behind its keys, and a softmax drops the bias of keys.
    assert changed == after.keys() - kept


def test_candidates_encoded_once(toy: Path, tmp_path: Path) -> None:
    """Give the losses of candidates encoded each time, to rounding."""
    optimiser = {"frozen": ["encoder", "context_codes"], "steps": 12}
    each, once = (
        train(toy, tmp_path / str(mode), "mix_encoder", optimiser=optimiser, data={"encode_once": mode})
        for mode in (False, True)
    )

    expected = [entry["loss"] for entry in each.progress.log]
    assert [entry["loss"] for entry in once.progress.log] == pytest.approx(expected, rel=1e-4)
    assert max(expected) - min(expected) > 0.01


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        ("cross_encoder", {"data": {"encode_once": True}}, "encode_once: a cross_encoder encodes nothing ahead"),
        ("mix_encoder", {"data": {"encode_once": True}}, "encode_once: what encodes candidates is trained"),
        ("mix_encoder", {"optimiser": {"frozen": ["encodr"]}}, "frozen: no parameter starts with 'encodr'; there are"),
        ("mix_encoder", {"optimiser": {"frozen": [""]}}, "frozen: no parameter is left to train"),
        ("mix_encoder", {"model": {"architecture": "bert"}}, "architecture 'bert' is unknown; there are bi_encoder,"),
        (
            "bi_encoder",
            {"model": {"architecture": "virt", "config": {"windw": 1}}},
            "config of virt: unknown keys: wind",
        ),
        ("bi_encoder", {"model": {"architecture": "deformer"}}, "config of deformer: missing keys: split"),
        ("bi_encoder", {"model": {"architecture": "deformer", "config": {"split": 3}}}, r"split must be within 1..2"),
        ("bi_encoder", {"model": {"config": {"pooling": "sum"}}}, "config of bi_encoder: pooling: 'sum' is none of"),
        ("bi_encoder", {"model": {"config": {"max_tokens": "9"}}}, "max_tokens: expected int, got '9'"),
    ],
)
def test_what_cannot_be_trained_is_told(
    toy: Path, tmp_path: Path, start: str, changes: dict[str, Any], message: str
) -> None:
    """Before the first step, in one sentence."""
    with pytest.raises(BadRecipe, match=message) as raised:
        Trainer(recipe(toy, tmp_path / "out", start, **changes), device=CPU)

    assert "\n" not in str(raised.value)


def test_a_loss_that_is_no_number_ends_the_run(toy: Path, tmp_path: Path) -> None:
    """Before it gets into the weights."""
    trainer = Trainer(recipe(toy, tmp_path / "out", losses=[{"name": "ranknet", "weight": float("nan")}]), device=CPU)
    before = {name: weight.clone() for name, weight in trainer.scorer.state_dict().items()}

    with pytest.raises(BadRecipe, match="step 1: loss nan"):
        trainer.run()
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.scorer.state_dict().items())


def test_a_scorer_learns_what_to_add(toy: Path, tmp_path: Path) -> None:
    """To scores in the groups: where their sum is right, there is nothing to learn; the checkpoint names whose."""
    contrastive = [{"name": "contrastive"}]
    fusion = {"scorer": "good", "weight": 100.0}
    (alone,) = train(toy, tmp_path / "alone", losses=contrastive, optimiser={"steps": 1}).progress.log
    trainer = train(
        toy,
        tmp_path / "fused",
        losses=contrastive,
        fusion=fusion,
        optimiser={"steps": 1},
        dev={"groups": str(toy / "dev.jsonl.gz")},
    )

    assert alone["loss"] > 0.1
    assert trainer.progress.log[0]["loss"] < 1e-3
    assert trainer.progress.best == 1.0
    assert load_model(str(tmp_path / "fused")).fusion == Fusion("good", 100.0)


def test_scores_that_are_not_in_the_groups(toy: Path, tmp_path: Path) -> None:
    """Cannot be added to."""
    with pytest.raises(BadInput, match=r"no teacher scores \['mix-b'\]; the groups have \['good', 'noisy'\]"):
        train(toy, tmp_path / "out", fusion={"scorer": "mix-b"})


def test_a_loss_may_be_named_twice(toy: Path, tmp_path: Path) -> None:
    """Each has its part in the sum, and its name in the log."""
    twice = [
        {"name": "distil", "teacher": {name: 1.0}, "weight": weight} for name, weight in (("good", 1.0), ("noisy", 2.0))
    ]
    (entry,) = train(toy, tmp_path / "out", losses=twice, optimiser={"steps": 1}).progress.log
    (alone,) = train(toy, tmp_path / "alone", losses=twice[1:], optimiser={"steps": 1}).progress.log

    assert entry["distil 2"] == pytest.approx(alone["distil"])
    assert entry["loss"] == pytest.approx(entry["distil"] + entry["distil 2"])


# What each architecture's config needs beside what it takes over from the start.
CONFIGS: dict[str, dict[str, Any]] = {
    "bi_encoder": {},
    "colbert": {"dim": 16},
    "cross_encoder": {"pattern": {"window": 4, "query_to_cls": False, "query_to_candidate": False}},
    "deformer": {"split": 1},
    "mix_encoder": {"interaction_layers": [1, 2], "similarity": "cosine"},
    "poly_encoder": {"num_codes": 4, "output_scaling": 0.3},
    "virt": {},
}
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


def steps_of(toy: Path, out: Path, name: str, steps: int, precision: str = "float32") -> list[float]:
    """The losses of a run of this architecture from a bi-encoder's weights."""
    model = {"architecture": name, "config": CONFIGS[name]} if name != "bi_encoder" else {}
    named = [{"name": "contrastive", "temperature": 0.2 if name in {"bi_encoder", "virt", "mix_encoder"} else 1.0}]
    optimiser = {"steps": steps, "learning_rate": 2e-3}
    trainer = train(
        toy,
        out,
        "bi_encoder",
        model=model,
        losses=named,
        optimiser=optimiser,
        data={"batch_rows": 400},
        precision=precision,
    )
    assert trainer.scorer.architecture == name
    return [entry["loss"] for entry in trainer.progress.log]


@every_architecture
def test_every_architecture_learns(toy: Path, tmp_path: Path, name: str) -> None:
    """To tell the candidate that holds the query's first word: the loss falls by a quarter."""
    found = steps_of(toy, tmp_path / "out", name, 12)

    assert sum(found[-3:]) < 3 / 4 * sum(found[:3])
    assert load_model(str(tmp_path / "out")).scorer.architecture == name


@every_architecture
def test_every_architecture_trains_in_bfloat16(toy: Path, tmp_path: Path, name: str) -> None:
    """The first steps' losses are those of float32, to three digits of products."""
    exact, rounded = (steps_of(toy, tmp_path / each, name, 2, each) for each in ("float32", "bfloat16"))

    assert rounded == pytest.approx(exact, rel=0.03)
    assert rounded != exact


def test_the_same_recipe_gives_the_same_run(toy: Path, tmp_path: Path) -> None:
    """Another seed gives another, and random parts of the model are drawn from it."""
    runs = [
        train(toy, tmp_path / str(place), "bi_encoder", model={"architecture": "cross_encoder"}, seed=seed)
        for place, seed in enumerate((3, 3, 4))
    ]

    assert losses(runs[0]) == losses(runs[1])
    assert_same_weights(runs[0], runs[1])
    assert losses(runs[0])[0] != losses(runs[2])[0]
    assert replace(runs[0].recipe, out="") == replace(runs[1].recipe, out="")

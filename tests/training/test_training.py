"""Training runs: they survive being killed, keep their best checkpoint, and are not mixed up with other runs."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.disk import full_disk
from support.models import tiny_cross_encoder
from support.training import CPU, contents, recipe, saved, toml, train, values

from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import load_model
from bandrank_training.__main__ import main
from bandrank_training.dev import DevSet
from bandrank_training.groups import read_groups, write_groups
from bandrank_training.locking import locked
from bandrank_training.models import write_model
from bandrank_training.recipe import BadRecipe
from bandrank_training.scoring import OfflineScorer, Question, score_offline
from bandrank_training.training import Trainer

HANG_S = 120  # far beyond what a slow machine takes to start a process


def losses(trainer: Trainer) -> list[dict[str, float]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in trainer.progress.log]


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    """Checks that two runs have the same weights and moments of the optimiser, to the bit."""
    for ours, theirs in zip(one.scorer.state_dict().items(), other.scorer.state_dict().items(), strict=True):
        assert torch.equal(ours[1], theirs[1]), ours[0]
    states = [trainer.optimiser.state_dict()["state"] for trainer in (one, other)]
    for index, moments in states[0].items():
        for name, moment in moments.items():
            assert torch.equal(moment, states[1][index][name])


def killed_in_mid_run(plain: dict[str, Any], folder: Path) -> int:
    """Runs `train` in its own process, kills it once its third step is saved, and returns how many lines it logged."""
    file, log = folder / "recipe.toml", Path(plain["out"]) / "log.jsonl"
    file.write_text(toml(plain | {"checkpoint_minutes": 0.0}), encoding="utf-8")
    command = [sys.executable, "-m", "bandrank_training", "train", str(file)]
    with subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        give_up = time.monotonic() + HANG_S
        # One line is of the measurement before the first step.
        while not (log.exists() and len(log.read_text().splitlines()) >= 4):
            assert time.monotonic() < give_up
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return len(log.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "named"),
    [("cross_encoder", [{"name": "ranknet"}]), ("mix_encoder", [{"name": "in_batch"}, {"name": "contrastive"}])],
)
def test_a_killed_run_ends_as_if_it_had_not_been(
    toy: Path, tmp_path: Path, start: str, named: list[dict[str, Any]]
) -> None:
    """After SIGKILL at no particular moment, losses, weights, dev measures and moments are the same to the bit."""
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
    """A longer run goes on as if it had been that long from the start; the same run again does nothing."""
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


def test_a_run_whose_rate_falls_cannot_be_made_longer(toy: Path, tmp_path: Path) -> None:
    """If the rate falls already, or would have by the new end, it would jump; until then the end may be moved."""
    train(toy, tmp_path / "out", optimiser={"steps": 3, "decay_steps": 0})
    trainer = train(toy, tmp_path / "out", optimiser={"steps": 5, "decay_steps": 2})
    whole = train(toy, tmp_path / "whole", optimiser={"steps": 5, "decay_steps": 2})

    assert_same_weights(trainer, whole)
    said = r"rate would jump; go on with steps = 5 and decay_steps = 2, and then name .*out as model\.start"
    for changes in ({"steps": 9, "decay_steps": 2}, {"steps": 9, "decay_steps": 6}, {"steps": 5, "decay_steps": 0}):
        with pytest.raises(BadRecipe, match=said):
            train(toy, tmp_path / "out", optimiser=changes)
    train(toy, tmp_path / "even", optimiser={"steps": 3, "decay_steps": 0})
    with pytest.raises(BadRecipe, match=r"rate would jump; go on with steps = 3 and decay_steps = 0"):
        train(toy, tmp_path / "even", optimiser={"steps": 4, "decay_steps": 3})


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
    train(toy, tmp_path / "out", optimiser={"steps": 1})

    with pytest.raises(BadRecipe, match=rf"state\.pt is of another run: {names}.*choose another `out`"):
        Trainer(recipe(toy, tmp_path / "out", **changes), device=CPU)


def test_the_same_groups_may_lie_elsewhere(toy: Path, tmp_path: Path) -> None:
    """A run goes on with another file of the same groups, because only the contents count."""
    train(toy, tmp_path / "out", optimiser={"steps": 2})
    shutil.copy(toy / "groups.jsonl", tmp_path / "moved.jsonl")
    moved = {"groups": [str(tmp_path / "moved.jsonl")]}

    assert Trainer(recipe(toy, tmp_path / "out", data=moved), device=CPU).progress.step == 2


def test_a_folder_that_another_run_writes_is_left_alone(toy: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "recipe.toml", tmp_path / "out"
    file.write_text(toml(values(toy, out)), encoding="utf-8")

    with locked(out):
        assert main(["train", str(file)]) == 2
        assert [*out.iterdir()] == [out / ".lock"]
    assert main(["train", str(file)]) == 0
    assert not (out / ".lock").exists()


def test_a_process_that_outlives_a_run_does_not_keep_its_folder(tmp_path: Path) -> None:
    """The one that reads batches ahead may stay when its run is killed, and the run could not go on."""
    with locked(tmp_path):
        ahead = multiprocessing.get_context("fork").Pool(1)
        ahead.apply(int)

    with ahead, locked(tmp_path):
        pass


def test_a_full_disk_is_told(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(toml(values(toy, tmp_path / "out")), encoding="utf-8")
    with full_disk(50_000):
        assert main(["train", str(file)]) == 2

    assert "state.pt.partial cannot be written; the disk may be full" in capsys.readouterr().err


def test_a_full_disk_leaves_the_model_in_the_folder_as_it_was(toy: Path, tmp_path: Path) -> None:
    """A run with another start, after its state was deleted: the old weights must not get the new tokenizer."""
    saved(tmp_path, tiny_cross_encoder())
    model, before = load_model(str(toy / "cross_encoder")), contents(tmp_path)
    model.tokenizer.normalizer = None
    with full_disk(50_000), pytest.raises(OSError, match=r"File too large.*model\.safetensors"):
        write_model(model, tmp_path)

    assert contents(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"PK half of an archive", b"no archive", b"hello", 5000])
def test_a_damaged_state_is_told(toy: Path, tmp_path: Path, content: bytes | int) -> None:
    """A disk that failed may leave such a state, or its first bytes; the error says what to do; torch's does not."""
    train(toy, tmp_path / "out", optimiser={"steps": 1})
    state = tmp_path / "out" / "state.pt"
    state.write_bytes(state.read_bytes()[:content] if isinstance(content, int) else content)

    with pytest.raises(BadRecipe, match=r"state\.pt cannot be read; delete it to begin anew"):
        Trainer(recipe(toy, tmp_path / "out"), device=CPU)


def test_a_file_of_another_program_is_kept(toy: Path, tmp_path: Path) -> None:
    """Others call the state of a run the same."""
    torch.save({"model": {}}, tmp_path / "state.pt")

    with pytest.raises(BadRecipe, match=r"state\.pt is not of a training run"):
        Trainer(recipe(toy, tmp_path), device=CPU)


def test_a_state_of_another_start_is_refused(toy: Path, tmp_path: Path) -> None:
    """A start of the same name may have other weights, and a finished run would pass for one that began with them."""
    shutil.copytree(toy / "cross_encoder", tmp_path / "start")
    model = {"start": str(tmp_path / "start")}
    train(toy, tmp_path / "out", optimiser={"steps": 1}, model=model)
    saved(tmp_path / "start", tiny_cross_encoder(pattern=sparse(4), seed=1))

    with pytest.raises(BadRecipe, match=r"of another run: the weights of model\.start or of a teacher differ"):
        train(toy, tmp_path / "out", optimiser={"steps": 1}, model=model)


@pytest.mark.parametrize("written_over", ["the start", "the words", "a teacher", "the fast scorer"])
def test_a_model_that_is_read_is_not_written_over(
    toy: Path,
    tmp_path: Path,
    written_over: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the start would be lost, and the run could not be resumed, because its start would be another. A scorer
    that adds to itself cannot be loaded.
    """
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "good"
    shutil.copytree(toy / "bi_encoder", out)
    changes: dict[str, Any] = {
        "the start": {"model": {"start": str(out)}},
        "the words": {"model": {"words": str(out)}},
        "a teacher": {"model_losses": [{"name": "vectors", "teacher": str(out)}]},
        "the fast scorer": {"fusion": {"scorer": "good"}},
    }[written_over]
    before = contents(out)
    (tmp_path / "recipe.toml").write_text(toml(values(toy, out, "bi_encoder", **changes)), encoding="utf-8")

    assert main(["train", str(tmp_path / "recipe.toml")]) == 2

    assert f"{out} is the folder of a model that is read; choose another" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.parametrize(("patience", "steps"), [(0, 1), (2, 3), (None, 5)])
def test_a_run_that_gets_no_better_ends(toy: Path, tmp_path: Path, patience: int | None, steps: int) -> None:
    """With a rate of 0 the start stays the best; `patience` measurements may bring no gain, one more ends the run."""
    dev = {"groups": str(toy / "dev.jsonl.gz"), "every_steps": 1} | ({} if patience is None else {"patience": patience})
    optimiser = {"steps": 5, "learning_rate": 0.0}
    trainer = train(toy, tmp_path / "out", optimiser=optimiser, dev=dev)
    again = train(toy, tmp_path / "out", optimiser=optimiser, dev=dev)

    assert (trainer.progress.step, again.progress.step) == (steps, steps)


def test_the_best_checkpoint_is_kept(toy: Path, tmp_path: Path) -> None:
    """The folder has the weights of the best step, and loaded from there they measure and score the same."""
    dev = {"groups": str(toy / "dev.jsonl.gz"), "every_steps": 1}
    trainer = train(toy, tmp_path / "out", optimiser={"steps": 6, "learning_rate": 5e-3}, dev=dev)
    measured = {entry["step"]: entry["dev"] for entry in trainer.progress.log if "dev" in entry}
    best = max(measured, key=measured.__getitem__)
    assert 0 < best < 6, "the start or the last step is the best; this test needs another rate"
    until = train(toy, tmp_path / "until", optimiser={"steps": best, "learning_rate": 5e-3})

    model = load_model(str(tmp_path / "out"))

    assert trainer.progress.best == measured[best]
    again = DevSet.read(toy / "dev.jsonl.gz").measure(OfflineScorer.in_training(model))
    assert again == pytest.approx(measured[best], abs=1e-12)
    for name, weight in model.scorer.state_dict().items():
        assert torch.equal(weight, until.scorer.state_dict()[name])
    asked = [Question("the of", ["man is new", "no", ""])]
    (expected,) = OfflineScorer.in_training(until.model).score(asked)
    assert list(score_offline(model).score(asked)) == [pytest.approx(expected, abs=1e-5)]


def test_a_start_that_is_the_best_stays(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training on inverted labels leaves the start's weights in the folder, to the bit, and the command says so."""
    start = train(toy, tmp_path / "start", optimiser={"steps": 30, "learning_rate": 1e-2})
    wrong = [
        replace(group, labels=[1 - label for label in group.labels or []])
        for group in read_groups(toy / "groups.jsonl")
    ]
    write_groups(tmp_path / "wrong.jsonl", wrong)
    changes = {
        "model": {"start": str(tmp_path / "start")},
        "data": {"groups": [str(tmp_path / "wrong.jsonl")]},
        "optimiser": {"steps": 8, "learning_rate": 1e-2},
        "dev": {"groups": str(toy / "groups.jsonl"), "every_steps": 4},
    }
    (tmp_path / "recipe.toml").write_text(toml(values(toy, tmp_path / "out", **changes)))

    assert main(["train", str(tmp_path / "recipe.toml")]) == 0

    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    measured = [(entry["step"], entry["dev"]) for entry in log if "dev" in entry]
    assert [step for step, _ in measured] == [0, 4, 8]
    assert measured[0][1] > max(measure for _, measure in measured[1:])
    for name, weight in load_model(str(tmp_path / "out")).scorer.state_dict().items():
        assert torch.equal(weight, start.scorer.state_dict()[name])
    assert f"best dev nDCG@10 {measured[0][1]:.4f} of the start, which no step made better" in capsys.readouterr().out


def test_another_dev_set_starts_its_own_best(toy: Path, tmp_path: Path) -> None:
    """A best measure on other groups may be impossible or too easy to beat; a finished run keeps its own."""
    dev = tmp_path / "dev.jsonl"
    write_groups(dev, read_groups(toy / "dev.jsonl.gz"))
    trained = train(toy, tmp_path / "out", dev={"groups": str(dev)}).progress
    longer = {"steps": trained.step + 2}
    same = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(dev)}, optimiser=longer), device=CPU)
    other = Trainer(
        recipe(toy, tmp_path / "out", dev={"groups": str(toy / "groups.jsonl")}, optimiser=longer), device=CPU
    )
    ended = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(toy / "groups.jsonl")}), device=CPU)
    shutil.copy(toy / "groups.jsonl", dev)
    written_over = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(dev)}, optimiser=longer), device=CPU)

    assert same.progress.best == trained.best > 0
    assert other.progress.best == written_over.progress.best == -torch.inf
    assert ended.run().best == trained.best
    after = Trainer(recipe(toy, tmp_path / "out", dev={"groups": str(dev)}, optimiser=longer), device=CPU)
    assert after.progress.best == -torch.inf


def test_the_same_recipe_gives_the_same_run(toy: Path, tmp_path: Path) -> None:
    """Another seed gives another run, and new parts of the model are drawn by the seed."""
    runs = [
        train(toy, tmp_path / str(place), "bi_encoder", model={"architecture": "cross_encoder"}, seed=seed)
        for place, seed in enumerate((3, 3, 4))
    ]

    assert losses(runs[0]) == losses(runs[1])
    assert_same_weights(runs[0], runs[1])
    assert losses(runs[0])[0] != losses(runs[2])[0]
    assert replace(runs[0].recipe, out="") == replace(runs[1].recipe, out="")

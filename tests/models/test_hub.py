"""Models loaded by their hub id from a local cache, without a network. They load in a process of their own, because
huggingface_hub reads its environment when it is imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.models import save_bi_encoder, save_cross_encoder, save_sparse_cross_encoder, tiny_hf_cross_encoder
from torch import Tensor

from bandrank.models.loading import load_model

# Reads [[model, revision], ...] and prints for each the first weight of the last tensor, the folder and the window, or
# the error.
LOAD = """
import json, sys
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model

answers = []
for model, revision in json.load(sys.stdin):
    try:
        loaded = load_model(model, revision)
        weight = float(next(iter(reversed(loaded.scorer.state_dict().values()))).flatten()[0])
        pattern = getattr(loaded.scorer.config, "pattern", None)
        answers.append({"weight": weight, "folder": str(loaded.folder), "window": pattern and pattern.window})
    except BadCheckpoint as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


def last_weight(folder: Path) -> float:
    """Returns the weight that LOAD would report for the model in `folder`."""
    weights: list[Tensor] = list(load_model(str(folder)).scorer.state_dict().values())
    return float(weights[-1].flatten()[0])


class Hub:
    """A cache in huggingface_hub's layout: blobs, snapshots of links to them, and refs."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def add(self, model: str, revision: str, commit: str, folder: Path) -> None:
        """Adds a revision of a model with the files of `folder`."""
        home = self.cache / f"models--{model.replace('/', '--')}"
        snapshot = home / "snapshots" / commit
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                blob = home / "blobs" / f"{commit}-{path.relative_to(folder).as_posix().replace('/', '-')}"
                blob.parent.mkdir(parents=True, exist_ok=True)
                blob.write_bytes(path.read_bytes())
                link = snapshot / path.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.path.relpath(blob, link.parent))
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / revision).write_text(commit, encoding="utf-8")

    def load(self, *models: tuple[str, str | None]) -> list[dict[str, object]]:
        """Returns LOAD's answers from a process without a network."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        answer = subprocess.run(
            [sys.executable, "-c", LOAD],
            input=json.dumps(models),
            env=environment | {"HF_HUB_CACHE": str(self.cache), "HF_HUB_OFFLINE": "1"},
            cwd=self.cache,
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(answer.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, dict[str, object]]]:
    """Returns the folders that the cache was made of, and one process's answer to each question of the tests."""
    folders = tmp_path_factory.mktemp("folders")
    made = {
        "main": save_sparse_cross_encoder(folders / "main", model=tiny_hf_cross_encoder(seed=1)),
        "v1": save_cross_encoder(folders / "v1", model=tiny_hf_cross_encoder(seed=2)),
        "old": save_cross_encoder(folders / "old", model=tiny_hf_cross_encoder(seed=3)),
        "bi": save_bi_encoder(folders / "bi"),
    }
    old = made["old"]
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    hub = Hub(tmp_path_factory.mktemp("cache"))
    hub.add("tiny/sparse", "main", "a" * 40, made["main"])
    hub.add("tiny/sparse", "v1", "b" * 40, made["v1"])
    hub.add("tiny/old", "main", "c" * 40, old)
    hub.add("bi", "main", "d" * 40, made["bi"])
    settings = save_cross_encoder(folders / "settings")
    (settings / "model.safetensors").unlink()
    hub.add("tiny/partial", "main", "e" * 40, settings)
    asked: dict[str, tuple[str, str | None]] = {
        "default": ("tiny/sparse", None),
        "branch": ("tiny/sparse", "v1"),
        "commit": ("tiny/sparse", "b" * 40),
        "no such branch": ("tiny/sparse", "v2"),
        "pickled": ("tiny/old", None),
        "without owner": ("bi", None),
        "missing": ("tiny/missing", None),
        "partial": ("tiny/partial", None),
    }
    return made, dict(zip(asked, hub.load(*asked.values()), strict=True))


Loaded = tuple[dict[str, Path], dict[str, dict[str, object]]]


@pytest.mark.parametrize(
    ("question", "folder", "commit"),
    [
        ("default", "main", "a"),
        ("branch", "v1", "b"),
        ("commit", "v1", "b"),
        ("pickled", "old", "c"),
        ("without owner", "bi", "d"),
    ],
)
def test_a_model_in_the_cache(loaded: Loaded, question: str, folder: str, commit: str) -> None:
    """A model is found by id, by branch and by commit, with or without an owner, and with pickled weights alone."""
    made, answers = loaded
    answer = answers[question]

    assert "error" not in answer
    assert Path(str(answer["folder"])).name == commit * 40
    assert answer["weight"] == last_weight(made[folder])


def test_a_sparse_model_by_id_is_sparse(loaded: Loaded) -> None:
    _, answers = loaded

    assert (answers["default"]["window"], answers["branch"]["window"]) == (4, None)


@pytest.mark.parametrize(("question", "model"), [("missing", "tiny/missing"), ("no such branch", "tiny/sparse")])
def test_a_model_that_is_not_in_the_cache(loaded: Loaded, question: str, model: str) -> None:
    """The message says why the model was not fetched, and what to do."""
    _, answers = loaded

    assert answers[question] == {
        "error": f"{model}: neither a folder nor in the local cache, and the hub cannot be reached (HF_HUB_OFFLINE "
        f"set, or no network); run `hf download {model} --local-dir FOLDER` where it can, and give the folder instead"
    }


def test_a_model_that_is_in_the_cache_in_part(loaded: Loaded) -> None:
    """The cache holds the settings without the weights, as after a download that was not finished."""
    _, answers = loaded

    assert "no model.safetensors and no pytorch_model.bin" in str(answers["partial"]["error"])

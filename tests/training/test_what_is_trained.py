"""What is trained: every architecture, all but what is frozen, by losses that a recipe names; and what is refused."""

import string
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import some_scores, tiny_encoder_config
from support.training import CPU, recipe, train

from bandrank.models.fusion import Fusion
from bandrank.models.ids import unpack_ids
from bandrank.models.loading import load_model
from bandrank.models.plain import parse
from bandrank.models.texts import TextEncoder
from bandrank_training.groups import BadGroups, read_groups, write_groups
from bandrank_training.models import build
from bandrank_training.recipe import BadRecipe, ModelRecipe
from bandrank_training.scoring import Question, score_offline
from bandrank_training.training import Trainer


def test_frozen_parameters_stay(toy: Path, tmp_path: Path) -> None:
    frozen = ["encoder.embeddings", "encoder.layers.0."]
    before = load_model(str(toy / "mix_encoder")).scorer.state_dict()
    after = train(toy, tmp_path / "out", "mix_encoder", optimiser={"frozen": frozen, "steps": 2}).scorer.state_dict()

    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    kept = {name for name in after if name.startswith(tuple(frozen))}
    assert kept
    assert changed == after.keys() - kept


def test_modernbert_is_trained(toy: Path, tmp_path: Path) -> None:
    """Training changes every weight of a ModernBERT."""
    before = load_model(str(toy / "sequence_cross_encoder")).scorer.state_dict()
    after = train(toy, tmp_path / "out", "sequence_cross_encoder", optimiser={"steps": 3}).scorer.state_dict()

    assert {name for name, weight in after.items() if not torch.equal(weight, before[name])} == after.keys()


def test_candidates_encoded_once_give_the_same_losses(toy: Path, tmp_path: Path) -> None:
    """Candidates encoded once give the losses of candidates that are encoded at each step, up to rounding."""
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
        (
            "cross_encoder",
            {"model": {"config": {"sentence_token": 10**6, "pattern": {}}}},
            r"config of cross_encoder: sentence_token must be within 0\.\.\d+, the vocabulary, got 1000000",
        ),
        (
            "cross_encoder",
            {"model": {"config": {"sentence_token": 1}}},
            "sentence_token needs a pattern in which queries",
        ),
        (
            "cross_encoder",
            {"model": {"config": {"encoder": asdict(tiny_encoder_config(positions=10**5))}}},
            "config of cross_encoder: cannot interpolate a table of 512 positions to 100000",
        ),
        ("bi_encoder", {"model": {"add_sentence_token": True}}, "add_sentence_token: a bi_encoder has none"),
        (
            "cross_encoder",
            {"optimiser": {"clipped": ["gate."]}},
            "clipped: no parameter starts with 'gate.'; there are",
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
    """The error comes before the first step, and is one line."""
    with pytest.raises(BadRecipe, match=message) as raised:
        Trainer(recipe(toy, tmp_path / "out", start, **changes), device=CPU)

    assert "\n" not in str(raised.value)


def test_what_is_clipped_is_told_by_name(toy: Path, tmp_path: Path) -> None:
    """With a tiny norm for the gradients of the gate, the gate stays and all other weights change."""
    optimiser = {"clipped": ["gate."], "max_norm": 1e-30, "steps": 2, "weight_decay": 0.0}
    before = load_model(str(toy / "mix_encoder")).scorer.state_dict()
    after = train(toy, tmp_path / "out", "mix_encoder", optimiser=optimiser).scorer.state_dict()

    changed = {name for name, weight in after.items() if (weight - before[name]).abs().max() > 1e-12}
    assert changed == {name for name in after if not name.startswith("gate.")}


def test_dropout_is_for_training_alone(toy: Path, tmp_path: Path) -> None:
    """Dropout changes the losses but not the scores of the trained scorer, and a resumed run drops the same numbers."""
    dropout = {"dropout": 0.3, "steps": 6}
    plain = train(toy, tmp_path / "plain", losses=[{"name": "contrastive"}])
    whole = train(toy, tmp_path / "whole", losses=[{"name": "contrastive"}], optimiser=dropout)
    train(toy, tmp_path / "two", losses=[{"name": "contrastive"}], optimiser=dropout | {"steps": 2})
    resumed = train(toy, tmp_path / "two", losses=[{"name": "contrastive"}], optimiser=dropout)

    losses = [[entry["loss"] for entry in run.progress.log] for run in (plain, whole, resumed)]
    assert losses[0] != losses[1] == losses[2]
    assert some_scores(whole.scorer.eval()) == some_scores(whole.scorer) == some_scores(whole.model.scorer)
    assert some_scores(whole.scorer) == some_scores(load_model(str(tmp_path / "whole")).scorer)
    whole.scorer.train()
    assert len({tuple(some_scores(whole.scorer)) for _ in range(3)}) == 3


def test_dropout_leaves_out_what_is_frozen(toy: Path, tmp_path: Path) -> None:
    """Dropout in frozen parts would change candidates that are encoded only once."""
    optimiser = {"frozen": ["encoder", "context_codes"], "dropout": 0.5, "steps": 1}
    trainer = train(toy, tmp_path / "out", "mix_encoder", optimiser=optimiser, data={"encode_once": True})

    hooked = {name for name, module in trainer.scorer.named_modules() if module._forward_hooks}
    assert hooked
    assert all(name.startswith("interactions.") for name in hooked)
    frozen = {"frozen": ["encoder", "context_codes", "interactions"], "dropout": 0.5}
    with pytest.raises(BadRecipe, match="dropout: nothing that it follows is trained"):
        Trainer(recipe(toy, tmp_path / "none", "mix_encoder", optimiser=frozen), device=CPU)


def test_a_colbert_has_no_vectors_of_punctuation(toy: Path) -> None:
    """A recipe may ask for vectors of punctuation, as some ColBERTs that were trained elsewhere have them."""
    made = {
        name: build(
            parse(ModelRecipe, {"start": str(toy / "bi_encoder"), "architecture": "colbert", "config": config}), seed=1
        )
        for name, config in {"default": {"dim": 8}, "all": {"dim": 8, "skipped_ids": []}}.items()
    }

    tokenizer = made["default"].tokenizer
    assert {tokenizer.id_to_token(each) for each in made["default"].scorer.config.skipped_ids} == {*string.punctuation}
    assert made["all"].scorer.config.skipped_ids == ()


@pytest.mark.parametrize("start", ["bi_encoder", "cross_encoder"])
def test_a_sentence_token_is_added(toy: Path, tmp_path: Path, start: str) -> None:
    """The token comes after the vocabulary as the mean of all tokens, is saved, and is read before each sentence."""
    model = {"architecture": "cross_encoder", "add_sentence_token": True, "config": {"pattern": {"window": 4}}}
    run = train(toy, tmp_path / "out", start, model=model, optimiser={"steps": 1})
    old = load_model(str(toy / start)).scorer
    new = load_model(str(tmp_path / "out"))

    size = old.config.encoder.vocab_size
    assert (new.scorer.config.sentence_token, new.scorer.config.encoder.vocab_size) == (size, size + 1)
    added = build(run.recipe.model, seed=1).scorer.state_dict()["encoder.embeddings.word.weight"]
    torch.testing.assert_close(added[-1], added[:-1].mean(0))
    pieces = unpack_ids(TextEncoder(new.tokenizer, new.scorer).pieces(["he is. she was there."])[0])
    assert [place for place, piece in enumerate(pieces) if piece == size] == [0, 4]
    assert len(next(score_offline(new).score([Question("who", ["he is. she was.", ""])]))) == 2


def test_a_loss_that_is_no_number_ends_the_run(toy: Path, tmp_path: Path) -> None:
    """The run ends before a loss that is infinite gets into the weights."""
    trainer = Trainer(recipe(toy, tmp_path / "out", losses=[{"name": "ranknet", "weight": float("inf")}]), device=CPU)
    before = {name: weight.clone() for name, weight in trainer.scorer.state_dict().items()}

    with pytest.raises(BadRecipe, match=r"step 1: loss inf, gradient .*; a smaller weight of a loss"):
        trainer.run()
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.scorer.state_dict().items())


def test_a_scorer_learns_what_to_add(toy: Path, tmp_path: Path) -> None:
    """A scorer learns to add to scores in the groups: if those are right already, there is nothing to learn. The
    checkpoint names the scorer that they come from.
    """
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
    assert [entry["loss"] < 1e-3 for entry in trainer.progress.log if "loss" in entry] == [True]
    assert trainer.progress.best == 1.0
    assert load_model(str(tmp_path / "fused")).fusion == Fusion("good", 100.0)


def test_scores_that_the_groups_lack_are_refused(toy: Path, tmp_path: Path) -> None:
    """Missing scores can be neither added to nor learnt from; no step is made even if one group alone lacks them."""
    with pytest.raises(
        BadGroups, match=r"has no scores of mix-b; it has those of good, noisy, and `score` adds others"
    ):
        Trainer(recipe(toy, tmp_path / "out", fusion={"scorer": "mix-b"}), device=CPU)
    *first, last = read_groups(toy / "groups.jsonl")
    write_groups(tmp_path / "groups.jsonl", [*first, replace(last, scores={"good": last.scores["good"]})])
    data, losses = {"groups": [str(tmp_path / "groups.jsonl")]}, [{"name": "distil", "teacher": {"noisy": 1.0}}]
    with pytest.raises(BadGroups, match=rf"the group of {last.query!r} has no scores of noisy"):
        Trainer(recipe(toy, tmp_path / "out", data=data, losses=losses), device=CPU)


@pytest.mark.parametrize("name", ["contrastive", "in_batch", "ranknet"])
def test_groups_that_teach_nothing_are_told(toy: Path, tmp_path: Path, name: str) -> None:
    """A run on unjudged groups would end as it began; a single judged group is enough, and so is a teacher."""
    groups = [replace(group, labels=None) for group in read_groups(toy / "groups.jsonl")]
    write_groups(tmp_path / "groups.jsonl", groups)
    data, losses = {"groups": [str(tmp_path / "groups.jsonl")]}, [{"name": name}]
    distil = {"name": "distil", "teacher": {"good": 1.0}}

    with pytest.raises(BadGroups, match=f"no group has a relevant candidate, and {name} can learn from nothing else"):
        Trainer(recipe(toy, tmp_path / "out", data=data, losses=losses), device=CPU)
    assert Trainer(recipe(toy, tmp_path / "out", data=data, losses=[*losses, distil]), device=CPU)
    write_groups(tmp_path / "groups.jsonl", [*groups, next(read_groups(toy / "groups.jsonl"))])
    assert Trainer(recipe(toy, tmp_path / "out", data=data, losses=losses), device=CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"max_relevant": 0}}, "max_relevant must be at least 1 for a loss that learns from labels"),
        ({"data": {"group_size": 1}}, "group_size must be at least 2 for a loss that compares the candidates"),
        ({"optimiser": {"max_norm": 0.0}}, r"max_norm must be above 0, got 0\.0; inf: gradients stay as they are"),
    ],
)
def test_recipes_that_train_nothing_are_refused(
    toy: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """These settings leave nothing to compare, or nothing of the gradients."""
    with pytest.raises(ValueError, match=message):
        recipe(toy, tmp_path / "out", **changes)


def test_a_loss_may_be_named_twice(toy: Path, tmp_path: Path) -> None:
    """Both losses are part of the sum, and each has its name in the log."""
    twice = [
        {"name": "distil", "teacher": {name: 1.0}, "weight": weight} for name, weight in (("good", 1.0), ("noisy", 2.0))
    ]
    (entry,) = train(toy, tmp_path / "out", losses=twice, optimiser={"steps": 1}).progress.log
    (alone,) = train(toy, tmp_path / "alone", losses=twice[1:], optimiser={"steps": 1}).progress.log

    assert entry["distil 2"] == pytest.approx(alone["distil"])
    assert entry["loss"] == pytest.approx(entry["distil"] + entry["distil 2"])


# What each architecture's config needs beside what it takes over from the start.
CONFIGS: dict[str, dict[str, Any]] = {
    "sequence_cross_encoder": {"max_tokens": 512},
    "bi_encoder": {},
    "colbert": {"dim": 16},
    "cross_encoder": {"pattern": {"window": 4, "query_to_cls": False, "query_to_candidate": False}},
    "deformer": {"split": 1},
    "mix_encoder": {"interaction_layers": [1, 2], "similarity": "cosine"},
    "poly_encoder": {"num_codes": 4, "output_scaling": 0.3},
    "virt": {},
}
every_architecture = pytest.mark.parametrize("name", sorted(CONFIGS))


def steps_of(toy: Path, out: Path, name: str, steps: int, precision: str = "float32") -> list[float]:
    """Trains an architecture from the weights of a bi-encoder, and returns the losses."""
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
    """The relevant candidate has the query's first word, and learning that lowers the loss by a quarter."""
    found = steps_of(toy, tmp_path / "out", name, 12)

    assert sum(found[-3:]) < 3 / 4 * sum(found[:3])
    assert load_model(str(tmp_path / "out")).scorer.architecture == name


@every_architecture
def test_every_architecture_trains_in_bfloat16(toy: Path, tmp_path: Path, name: str) -> None:
    """Products in bfloat16 have about three digits, so the first losses are near those of float32 but not the same."""
    exact, rounded = (steps_of(toy, tmp_path / each, name, 2, each) for each in ("float32", "bfloat16"))

    assert rounded == pytest.approx(exact, rel=0.03)
    assert rounded != exact

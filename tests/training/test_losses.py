"""Each loss against its paper's formula, written out with loops; padding and unjudged groups change nothing."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bandrank_training.errors import BadInput
from bandrank_training.losses import LOSSES, UNKNOWN, LossRecipe, Scored

EXACT = 1e-9  # float64, sums of at most 100 terms of the order of 10
TEACHER = {"one": 2.0, "two": -0.5}


@dataclass(frozen=True)
class Row:
    """A group: scores of the student, labels, scores of two teachers."""

    scores: list[float]
    labels: list[int]
    one: list[float]
    two: list[float]

    @property
    def teacher(self) -> list[float]:
        """The sum of the teachers' scores, weighted as in `TEACHER`."""
        return [TEACHER["one"] * one + TEACHER["two"] * two for one, two in zip(self.one, self.two, strict=True)]


Formula = Callable[[Sequence[Row], LossRecipe], list[float]]  # the terms of which the loss is the mean


def margin_mse(rows: Sequence[Row], recipe: LossRecipe) -> list[float]:
    """Hofstaetter et al. 2020, eq. 4: MSE(s+ - s-, t+ - t-), for each negative of each group."""
    terms = []
    for row in rows:
        relevant = [place for place, label in enumerate(row.labels) if label > 0]
        best = max(relevant or range(len(row.labels)), key=row.teacher.__getitem__)
        for place in range(len(row.labels)):
            if place != best:
                margin, wanted = (s[best] - s[place] for s in (row.scores, row.teacher))
                terms.append(((margin - wanted) / recipe.temperature) ** 2)
    return terms


def ranknet(rows: Sequence[Row], recipe: LossRecipe) -> list[float]:
    """Burges et al. 2005, eq. 3 with a target probability of 1: log(1 + exp(-(s_i - s_j))) where i is better than j."""
    terms = []
    for row in rows:
        value = row.teacher if recipe.teacher else row.labels
        for i, better in enumerate(value):
            for j, worse in enumerate(value):
                if better > worse and (recipe.teacher or UNKNOWN not in (better, worse)):
                    margin = (row.scores[i] - row.scores[j]) / recipe.temperature
                    terms.append(math.log1p(math.exp(-margin)))
    return terms


def distil(rows: Sequence[Row], recipe: LossRecipe) -> list[float]:
    """Hinton et al. 2015: T^2 KL(softmax(t / T) || softmax(s / T)), for each group."""

    def softmax(logits: Sequence[float]) -> list[float]:
        powers = [math.exp(logit / recipe.temperature) for logit in logits]
        return [power / sum(powers) for power in powers]

    return [
        recipe.temperature**2
        * sum(p * math.log(p / q) for p, q in zip(softmax(row.teacher), softmax(row.scores), strict=True))
        for row in rows
    ]


def contrastive(rows: Sequence[Row], recipe: LossRecipe) -> list[float]:
    """Gao et al. 2021, eq. 6: -log(exp(s+) / (exp(s+) + sum of exp(s-))), for each relevant candidate."""
    terms = []
    for row in rows:
        relevant = [place for place, label in enumerate(row.labels) if label > 0]
        negative = [place for place, label in enumerate(row.labels) if label == 0]
        if recipe.denoise is not None and relevant:
            limit = min(row.teacher[place] for place in relevant) + recipe.denoise
            negative = [place for place in negative if row.teacher[place] < limit]
        for own in relevant:
            power = math.exp(row.scores[own] / recipe.temperature)
            against = sum(math.exp(row.scores[place] / recipe.temperature) for place in negative)
            terms.append(-math.log(power / (power + against)))
    return terms


FORMULAS: dict[str, Formula] = {
    "margin_mse": margin_mse,
    "ranknet": ranknet,
    "distil": distil,
    "contrastive": contrastive,
    "in_batch": contrastive,
}
RECIPES = [
    LossRecipe("margin_mse", teacher=TEACHER),
    LossRecipe("margin_mse", teacher=TEACHER, temperature=3.0),
    LossRecipe("ranknet"),
    LossRecipe("ranknet", teacher=TEACHER),
    LossRecipe("ranknet", temperature=0.5),
    LossRecipe("distil", teacher=TEACHER),
    LossRecipe("distil", teacher=TEACHER, temperature=2.0),
    LossRecipe("contrastive"),
    LossRecipe("contrastive", temperature=0.3),
    LossRecipe("contrastive", teacher=TEACHER, denoise=1.0),
    LossRecipe("contrastive", teacher=TEACHER, denoise=-0.5),
    LossRecipe("in_batch"),
]
few_examples = settings(max_examples=20)  # each with up to five groups
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=str)


def random_row(rng: random.Random, labels: list[int]) -> Row:
    """Returns a group with these labels and random scores of the order of 1, none of them equal."""
    scores, one, two = ([rng.gauss(0, 1.5) for _ in labels] for _ in range(3))
    return Row(scores, labels, one, two)


@st.composite
def groups(draw: st.DrawFn) -> list[Row]:
    """Up to five groups of one to six candidates, with graded labels, some labels unknown, or not judged at all."""
    rng = random.Random(draw(st.integers(0, 999), label="seed"))
    judged = st.lists(st.sampled_from([0, 0, 1, 2, UNKNOWN]), min_size=1, max_size=6)
    unjudged = st.integers(1, 6).map(lambda size: [UNKNOWN] * size)
    return [random_row(rng, labels) for labels in draw(st.lists(judged | unjudged, min_size=1, max_size=5))]


def scored(rows: Sequence[Row], *, extra: int = 0) -> Scored:
    """Pads groups to the longest of them and `extra` more, with numbers and labels that would change a loss."""
    width = max(len(row.labels) for row in rows) + extra
    rng = random.Random(0)

    def padded(values: Sequence[Sequence[float]], garbage: Callable[[], float], **how: Any) -> Tensor:
        return torch.tensor([[*row, *(garbage() for _ in range(width - len(row)))] for row in values], **how)

    def noise() -> float:
        return rng.choice([-900.0, 0.0, 900.0])

    lengths = torch.tensor([len(row.labels) for row in rows])
    return Scored(
        padded([row.scores for row in rows], noise, dtype=torch.float64),
        torch.arange(width) < lengths[:, None],
        padded([row.labels for row in rows], lambda: rng.choice([0, 1, UNKNOWN])),
        {
            "one": padded([row.one for row in rows], noise, dtype=torch.float64),
            "two": padded([row.two for row in rows], noise, dtype=torch.float64),
        },
    )


def loss_and_gradient(recipe: LossRecipe, given_scores: Scored) -> tuple[float, Tensor]:
    leaf = given_scores.scores.clone().requires_grad_()
    loss = LOSSES[recipe.name](replace(given_scores, scores=leaf), recipe)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
    assert leaf.grad is not None
    return loss.item(), leaf.grad


def test_every_loss_is_here() -> None:
    """A loss that is added to the table must be added here as well."""
    assert {recipe.name for recipe in RECIPES} == set(LOSSES) == set(FORMULAS)


@every_recipe
@few_examples
@given(rows=groups(), extra=st.integers(0, 3))
def test_a_loss_is_its_formula(recipe: LossRecipe, rows: list[Row], extra: int) -> None:
    """A loss is the mean of its terms, and 0 if there are none."""
    terms = FORMULAS[recipe.name](rows, recipe)

    loss, _ = loss_and_gradient(recipe, scored(rows, extra=extra))

    assert loss == pytest.approx(sum(terms) / max(1, len(terms)), abs=EXACT, rel=EXACT)


@every_recipe
@few_examples
@given(rows=groups())
def test_gradients_are_numbers_and_those_of_the_formula(recipe: LossRecipe, rows: list[Row]) -> None:
    """The gradient of a score is the difference quotient of the formula; padding has none, whatever is in it."""
    _, gradient = loss_and_gradient(recipe, scored(rows, extra=2))

    def value(changed: Sequence[Row]) -> float:
        terms = FORMULAS[recipe.name](changed, recipe)
        return sum(terms) / max(1, len(terms))

    step = 1e-4  # the error of a central quotient is of the order of its square
    for index, row in enumerate(rows):
        for place in range(len(row.labels)):
            moved = []
            for change in (step, -step):
                scores = [*row.scores[:place], row.scores[place] + change, *row.scores[place + 1 :]]
                moved.append(value([*rows[:index], replace(row, scores=scores), *rows[index + 1 :]]))
            assert gradient[index, place].item() == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-5)
        assert gradient[index, len(row.labels) :].tolist() == [0.0] * (gradient.shape[1] - len(row.labels))


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if not recipe.teacher or recipe.denoise], ids=str)
@few_examples
@given(rows=groups(), size=st.integers(1, 6))
def test_an_unjudged_group_changes_nothing(recipe: LossRecipe, rows: list[Row], size: int) -> None:
    """Where labels decide, an unjudged group changes neither the loss nor the gradients of the other groups."""
    unjudged = random_row(random.Random(1), [UNKNOWN] * size)

    loss, gradient = loss_and_gradient(recipe, scored(rows))
    more_loss, more_gradient = loss_and_gradient(recipe, scored([*rows, unjudged]))

    assert more_loss == pytest.approx(loss, abs=EXACT)
    width = gradient.shape[1]
    torch.testing.assert_close(more_gradient[:-1, :width], gradient, rtol=0, atol=EXACT)
    assert more_gradient[-1].count_nonzero() == 0


@few_examples
@given(rows=groups())
def test_margin_mse_of_a_student_who_is_the_teacher(rows: list[Row]) -> None:
    """The loss is 0, also if a constant is added to all scores of a group."""
    shifted = [
        replace(row, scores=[score + 10 * shift for score in row.teacher]) for shift, row in enumerate(rows, start=-2)
    ]
    loss, gradient = loss_and_gradient(LossRecipe("margin_mse", teacher=TEACHER), scored(shifted))

    assert loss == pytest.approx(0, abs=EXACT)
    assert gradient.abs().max().item() == pytest.approx(0, abs=EXACT)


def test_margin_mse_starts_from_the_relevant_one_that_the_teacher_likes_best() -> None:
    """Margins 3 - 5 and 3 - 1 against the teacher's 2 - 9 and 2 - 1: (-2 + 7)^2 and (2 - 1)^2."""
    row = Row([1.0, 3.0, 5.0], [1, 2, 0], [1.0, 2.0, 9.0], [0.0] * 3)
    loss, _ = loss_and_gradient(LossRecipe("margin_mse", teacher={"one": 1.0}), scored([row]))

    assert loss == pytest.approx((25 + 1) / 2)


def test_ranknet_of_two_documents() -> None:
    """A relevant one 2 below an irrelevant one costs log(1 + e^2); its gradient is -1 / (1 + e^-2)."""
    loss, gradient = loss_and_gradient(LossRecipe("ranknet"), scored([Row([1.0, 3.0], [1, 0], [0.0] * 2, [0.0] * 2)]))

    assert loss == pytest.approx(math.log(1 + math.e**2))
    assert gradient[0].tolist() == pytest.approx([-1 / (1 + math.e**-2), 1 / (1 + math.e**-2)])


def test_denoising_leaves_out_negatives_that_the_teacher_likes() -> None:
    """The limit is 0.5 above the 1 of the worst relevant candidate: of 1.4, 1.5 and 7, only the first stays."""
    row = Row([0.0] * 5, [1, 2, 0, 0, 0], [1.0, 3.0, 1.4, 1.5, 7.0], [0.0] * 5)
    recipe = LossRecipe("contrastive", teacher={"one": 1.0}, denoise=0.5)
    loss, gradient = loss_and_gradient(recipe, scored([row]))

    assert loss == pytest.approx(math.log(2))
    assert gradient[0].tolist() == pytest.approx([-0.25, -0.25, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "hinge"}, "loss 'hinge' is unknown; there are margin_mse, ranknet, distil, contrastive, in_batch"),
        ({"name": "distil"}, "loss 'distil' needs a teacher"),
        ({"name": "margin_mse"}, "loss 'margin_mse' needs a teacher"),
        ({"name": "contrastive", "denoise": 1.0}, "denoise goes with the loss 'contrastive' and a teacher"),
        ({"name": "ranknet", "teacher": TEACHER, "denoise": 1.0}, "denoise goes with the loss 'contrastive'"),
        ({"name": "in_batch", "teacher": TEACHER}, "loss 'in_batch' takes no teacher"),
        ({"name": "ranknet", "temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"name": "ranknet", "temperature": math.nan}, "temperature must be above 0, got nan"),
        ({"name": "ranknet", "weight": -1.0}, "weight must be at least 0, got -1.0"),
    ],
)
def test_a_bad_loss_is_told(arguments: dict[str, Any], message: str) -> None:
    """The error comes when the recipe is made, not at the first step."""
    with pytest.raises(ValueError, match=message):
        LossRecipe(**arguments)


@pytest.mark.parametrize("name", ["margin_mse", "ranknet", "distil", "contrastive"])
def test_a_teacher_whose_scores_are_not_there_is_told(name: str) -> None:
    recipe = LossRecipe(name, teacher={"one": 1.0, "three": 1.0}, denoise=1.0 if name == "contrastive" else None)

    with pytest.raises(BadInput, match=r"no teacher scores \['three'\]; the groups have \['one', 'two'\]"):
        loss_and_gradient(recipe, scored([Row([0.0], [1], [0.0], [0.0])]))

"""`compare`: the table, its marks, and what cannot be compared."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bandrank_training.__main__ import main
from bandrank_training.comparison import compare
from bandrank_training.measures import MEASURES
from bandrank_training.results import BadEvaluation, Benchmark, Evaluation, read_evaluation


def evaluation_of(system: str, scores: list[float], *, collection: str = "tiny", min_relevance: int = 1) -> Evaluation:
    """Returns an evaluation in which all measures of a query have the same value."""
    values = {f"q{number}": dict.fromkeys(MEASURES, score) for number, score in enumerate(scores)}
    return Evaluation(system, Benchmark(collection, "test", "judged pools", min_relevance), values)


def shifted(scores: list[float], mean: float, spread: float, seed: int = 0) -> list[float]:
    """Returns the scores with differences of exactly this mean and about this spread added."""
    rng = random.Random(seed)
    noise = [rng.gauss(0, spread) for _ in scores]
    center = sum(noise) / len(noise)
    return [score + mean + each - center for score, each in zip(scores, noise, strict=True)]


BASELINE = [0.3, 0.5, 0.7, 0.9] * 25


def test_the_table_by_hand() -> None:
    table = compare(
        [
            evaluation_of("base", BASELINE),
            evaluation_of("same", shifted(BASELINE, 0.0, 0.01)),
            evaluation_of("near", shifted(BASELINE, 0.01, 0.01)),
            evaluation_of("worse", shifted(BASELINE, -0.1, 0.1)),
            evaluation_of("unclear", shifted(BASELINE, 0.01, 0.3)),
            evaluation_of("base", [0.8, 0.9, 1.0], collection="other"),
            evaluation_of("same", [0.8, 0.9, 1.0], collection="other"),
        ]
    ).splitlines()

    assert table[:6] == [
        "| collection | queries | base | same | near | worse | unclear |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| tiny test, judged pools | 100 | 0.600 | 0.600† | 0.610†\\* | 0.500\\* | 0.610 |",
        "| other test, judged pools | 3 | 0.900 | 0.900† | - | - | - |",
        "| all queries | 103 | 0.609 | 0.609† | - | - | - |",
        "| mean of 2 |  | 0.750 | 0.750 | - | - | - |",
    ]
    assert table[6] == ""
    assert "† equivalent to base within ±0.02" in table[7]
    assert "over the 6 comparisons" in table[7]


def test_collections_together_show_what_each_is_too_small_for() -> None:
    """The row of all queries pairs the systems by query; the same id in two collections is two queries."""
    names = [f"c{number}" for number in range(8)]
    base = [evaluation_of("base", BASELINE, collection=name) for name in names]
    near = [
        evaluation_of("near", shifted(BASELINE, 0.0, 0.1, seed), collection=name) for seed, name in enumerate(names)
    ]
    table = compare(base + near)

    assert "| c0 test, judged pools | 100 | 0.600 | 0.600 |" in table
    assert "| all queries | 800 | 0.600 | 0.600† |" in table


def test_verdicts_are_corrected_for_the_size_of_the_table() -> None:
    """A difference that is significant by itself is no longer so as one of twenty."""
    base = evaluation_of("base", BASELINE)
    close_call = evaluation_of("close", shifted(BASELINE, 0.01, 0.045))
    others = [evaluation_of(f"o{seed}", shifted(BASELINE, 0.02, 0.1, seed)) for seed in range(1, 20)]

    assert "0.610†\\*" in compare([base, close_call])
    assert "| 0.610 |" in compare([base, close_call, *others])


def test_another_measure_can_be_compared() -> None:
    base, other = evaluation_of("base", BASELINE), evaluation_of("other", BASELINE)
    for values in other.values.values():
        values["R@1"] = 0.1

    assert "| 0.600 | 0.600† |" in compare([base, other])
    assert "| 0.600 | 0.100\\* |" in compare([base, other], measure="R@1")


def test_other_queries_are_refused() -> None:
    with pytest.raises(BadEvaluation, match=r"tiny test.*: base has 100 queries and less 99, of which 99 are the same"):
        compare([evaluation_of("base", BASELINE), evaluation_of("less", BASELINE[1:])])


@pytest.mark.parametrize(
    ("evaluations", "message"),
    [
        ([evaluation_of("base", [0.1]), evaluation_of("other", [0.1])], "at least 2 queries, got 1"),
        ([evaluation_of("base", BASELINE)] * 2, "base on tiny test, judged pools is there twice"),
        (
            [evaluation_of("base", BASELINE), evaluation_of("other", BASELINE, collection="more")],
            "the baseline has no evaluation on more test, judged pools, which other has",
        ),
        (
            [evaluation_of("base", BASELINE), evaluation_of("other", BASELINE, min_relevance=2)],
            "relevance 2.*, which other has",
        ),
    ],
)
def test_what_cannot_be_compared_is_told(evaluations: list[Evaluation], message: str) -> None:
    with pytest.raises(BadEvaluation, match=message):
        compare(evaluations)


@pytest.mark.parametrize("differing", ["judgements", "candidates"])
def test_others_of_the_same_names_are_not_compared(differing: str) -> None:
    """The systems in a row must have the same digests of judgements and candidates."""

    def with_digest(system: str, digest: str) -> Evaluation:
        made = evaluation_of(system, BASELINE)
        return replace(made, benchmark=replace(made.benchmark, **{f"{differing}_digest": digest}))

    one, same, other = map(with_digest, ("one", "same", "other"), ("1a", "1a", "2b"))

    assert "| 0.600 | 0.600† |" in compare([one, same])
    with pytest.raises(BadEvaluation, match=rf"but with other {differing} \(digests 2b and 1a\)"):
        compare([one, other])


def test_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{name}.json") for name in ("base", "other")]
    evaluations = [evaluation_of("base", BASELINE), evaluation_of("other", BASELINE)]
    for path, evaluation in zip(paths, evaluations, strict=True):
        evaluation.save(Path(path))
        assert read_evaluation(Path(path)) == evaluation

    assert main(["compare", *paths]) == 0
    assert capsys.readouterr().out == compare(evaluations)
    assert main(["compare", *paths, "--out", str(tmp_path / "table.md")]) == 0
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == compare(evaluations)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 99_999, "{}", '{"values": {"q": {"nDCG@10": 1}}}', '{"values": []}', None]
)
def test_a_file_that_is_no_evaluation_is_named(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "base.json"
    if content is not None:
        path.write_text(content)

    assert main(["compare", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"bandrank_training: {path}")


def test_values_without_queries_are_refused(tmp_path: Path) -> None:
    """Without a query there is no mean."""
    evaluation = evaluation_of("base", BASELINE)
    evaluation.save(tmp_path / "base.json")
    content = json.loads((tmp_path / "base.json").read_text()) | {"values": {}}
    (tmp_path / "base.json").write_text(json.dumps(content))

    with pytest.raises(BadEvaluation, match=r"base.json.*no query"):
        read_evaluation(tmp_path / "base.json")

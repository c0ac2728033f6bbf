"""The benchmark of cascades: what it ranks is what a served cascade ranks, and the page says what was lost."""

from pathlib import Path

import pytest
from support.collections import write_collection, write_run_lines
from support.scorers import encoded_lookup, lookup
from support.serving import served

from bandrank.settings import Settings
from bandrank_bench.cascade import cascaded, measure_one, ranked, read
from bandrank_bench.cascade_report import ALL, DEPTHS, Measured, report
from bandrank_training.collection import BadCollection

FAST = {"man": 1.0, "she": 4.0, "you": 3.0, "he": 2.0, "no": -1.0}
ACCURATE = {"man": 9.0, "she": 1.0, "you": 5.0, "he": 7.0, "no": 20.0}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A collection whose documents are the words, judged for two queries, the second of which has no relevant one."""
    return write_collection(
        tmp_path / "words",
        documents={word: word for word in FAST},
        queries={"q": "is it", "r": "is she"},
        qrels={"q": {**dict.fromkeys(FAST, 0), "no": 1}, "r": {"he": 0, "she": 0}},
    )


@pytest.mark.parametrize("depth", range(1, len(FAST) + 1))
async def test_the_order_of_a_cascade_is_that_which_the_service_gives(depth: int) -> None:
    """At any depth, the order follows from the two scorers' orders of all candidates."""
    settings = Settings(device="cpu", cascade_depth=depth)
    async with served(lookup(**ACCURATE), fast=encoded_lookup(**FAST), settings=settings) as model:
        orders = {
            stage: (await ranked(model, "is it", list(FAST), stage))[0] for stage in ("fast", "accurate", "cascade")
        }

    assert cascaded(orders["fast"], orders["accurate"], depth) == orders["cascade"]


async def test_a_cascade_loses_what_the_fast_scorer_hides(words: Path) -> None:
    """The one relevant word is the fast scorer's last and the accurate one's first."""
    async with served(lookup(**ACCURATE), fast=encoded_lookup(**FAST)) as model:
        measured = await measure_one(model, read(str(words), 2), timed=1)

    [first] = [index for index, values in enumerate(zip(*measured.ndcg.values(), strict=True)) if any(values)]
    assert measured.ndcg[ALL][first] == 1.0
    assert measured.ndcg[0][first] == pytest.approx(0.387, abs=0.001)
    assert all(measured.overlap[depth] == [1.0, 1.0] for depth in DEPTHS)
    assert [len(measured.cost[depth]) for depth in DEPTHS] == [1] * len(DEPTHS)


def test_candidates_are_those_of_a_run_where_there_is_one(words: Path) -> None:
    """Without a run, the judged documents are the candidates; if no judged query has any, it is an error."""
    assert read(str(words), 9).listed == {"q": sorted(FAST), "r": ["he", "she"]}

    (words / "runs").mkdir()
    write_run_lines(words / "runs" / "bm25.test.trec.gz", {"q": {"man": 1.0, "no": 2.0}})

    assert read(str(words), 9).listed == {"q": ["no", "man"]}
    write_run_lines(words / "runs" / "bm25.test.trec.gz", {"other": {"man": 1.0}})
    with pytest.raises(BadCollection, match="no judged query has candidates"):
        read(str(words), 9)


def test_of_several_runs_the_first_by_name_counts(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of the split come before those of all splits, and the run that counts is named."""
    (words / "runs").mkdir()
    for name in ("a.all", *(f"{letter}.test" for letter in "mkblx")):
        write_run_lines(words / "runs" / f"{name}.trec.gz", {"q": {"man" if name == "b.test" else "no": 1.0}})

    assert read(str(words), 9).listed == {"q": ["man"]}
    assert f"words test: candidates of {words}/runs/b.test.trec.gz" in capsys.readouterr().err


def test_the_page_names_the_collection_that_loses_most() -> None:
    """In the mean over collections, each of them has the same weight."""

    def measured(name: str, fast: float) -> Measured:
        ndcg = {depth: [0.8, fast if depth < ALL else 0.8] for depth in DEPTHS}
        cost = {depth: [depth / ALL] for depth in DEPTHS}
        return Measured(name, 100.0, ndcg, {depth: [1.0] for depth in DEPTHS}, cost)

    page = report([measured("one test", 0.7), measured("two test", 0.4)])

    assert "| 20 | 0.6750 | -0.1250 | -0.2000, two test | 1.000 | 0.200 |" in page
    assert "| two test | 2 | 100 | 0.6000 |" in page

"""Mining: what gets into a group, with which labels and scores; `mine` and `train` from the command line."""

import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.collections import write_collection, write_lines
from support.models import random_text, save_bi_encoder, save_cross_encoder
from support.tokenizer import WORDS
from support.training import toml

from bandrank.models.loading import load_model
from bandrank_training.__main__ import main
from bandrank_training.bm25 import BM25
from bandrank_training.collection import BadCollection, open_collection
from bandrank_training.forms import FUNCTION_WORDS
from bandrank_training.groups import Group, read_groups
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.scoring import Question, score_offline

NOUNS = ["river", "engine", "castle", "violin", "planet", "garden", "doctor", "winter", "copper", "falcon"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection of 30 documents and 7 queries of the same nouns, and a teacher."""
    made = tmp_path_factory.mktemp("mining")
    rng = random.Random(0)
    documents = {f"d{n}": f"{' '.join(rng.choices(NOUNS, k=4))}. {random_text(rng, 6)}" for n in range(30)}
    queries = {f"q{n}": f"what is the {rng.choice(NOUNS)} of a {rng.choice(NOUNS)}" for n in range(7)}
    qrels = {
        "q0": {"d3": 1, "d4": 0},
        "q1": {f"d{n}": 1 + n % 2 for n in range(1, 10)},  # more than max_judged
        "q2": {"d29": 2, "d5": -1},
        "q3": {"d1": 0},  # nothing relevant
        "q4": {"d99": 1},  # not in the corpus
        "q5": {"d8": 1},
    }
    write_collection(made / "col", documents=documents, queries=queries, qrels=qrels, split="train")
    save_cross_encoder(made / "teacher")
    return made


def recipe(folder: Path, out: Path, source: dict[str, Any] | None = None, **more: Any) -> MiningRecipe:
    settings: dict[str, Any] = {"teachers": {"cross": str(folder / "teacher")}, "depth": 12, "hard": 4, "random": 2}
    sources = (Source(str(folder / "col"), **source or {}),)
    return MiningRecipe(str(out), sources, **settings | {"max_judged": 3} | more)


def mined(folder: Path, out: Path, source: dict[str, Any] | None = None, **more: Any) -> list[Group]:
    count = mine(recipe(folder, out, source, **more))
    groups = list(read_groups(out))
    assert len(groups) == count
    return sorted(groups, key=lambda group: group.query)


def texts(folder: Path) -> dict[str, str]:
    return dict(open_collection(folder / "col").documents())


def test_judged_documents_are_in_their_group(folder: Path, tmp_path: Path) -> None:
    """A group has the best judged documents, at most `max_judged`; all others have the label 0; none comes twice."""
    collection = open_collection(folder / "col")
    queries, qrels = collection.queries(), collection.qrels("train")
    by_query = {group.query: group for group in mined(folder, tmp_path / "groups.jsonl.gz")}

    assert set(by_query) == {queries[name] for name in ("q0", "q1", "q2", "q5")}
    for name in ("q0", "q1", "q2", "q5"):
        group = by_query[queries[name]]
        assert group.labels is not None
        labels = dict(zip(group.candidates, group.labels, strict=True))
        assert len(labels) == len(group.candidates) > 4
        best = sorted(qrels[name].values(), reverse=True)[:3]
        own = {each: label for each, label in labels.items() if each in qrels[name]}
        assert own == {each: max(0, qrels[name][each]) for each in own}
        assert sorted(own.values(), reverse=True) == [max(0, label) for label in best]
        assert all(label == 0 for each, label in labels.items() if each not in own)
        assert len(labels) <= 3 + 4 + 2
        assert set(group.scores) == {"cross", "bm25", "bm25_share"}


def test_a_list_as_a_search_gives_it(folder: Path, tmp_path: Path) -> None:
    """With `found_only`, judged candidates that BM25 did not find are left out, and those that it found stay."""
    documents, shallow = texts(folder), {"depth": 3, "hard": 3, "random": 0}
    index, qrels = BM25(list(documents.values())), open_collection(folder / "col").qrels("train")
    of = {text: qrels.get(name, {}) for name, text in open_collection(folder / "col").queries().items()}
    groups = mined(folder, tmp_path / "groups.jsonl.gz", found_only=True, **shallow)

    for group in groups:
        ((found, _),) = index.search([group.query], 3)
        best = {list(documents)[number] for number in found}
        assert best - of[group.query].keys() <= set(group.candidates) <= best
        judged = best & of[group.query].keys()
        assert judged <= set(group.candidates)
    everything = mined(folder, tmp_path / "all.jsonl.gz", **shallow)
    assert sum(group.has_relevant for group in groups) < sum(group.has_relevant for group in everything)


def test_a_part_of_a_list_is_drawn(folder: Path, tmp_path: Path) -> None:
    """With `drawn`, all judged candidates and so many of the others stay, with unchanged labels and scores."""
    collection = open_collection(folder / "col")
    qrels = collection.qrels("train")
    judged_of = {text: qrels.get(name, {}).keys() for name, text in collection.queries().items()}
    listed = {group.query: group for group in mined(folder, tmp_path / "all.jsonl.gz", hard=10)}
    groups = mined(folder, tmp_path / "drawn.jsonl.gz", hard=10, drawn=3)

    assert [group.query for group in groups] == sorted(listed)
    for group in groups:
        before = listed[group.query]
        count = len(judged_of[group.query] & set(before.candidates))
        assert len(group.candidates) == count + 3
        assert group.candidates[:count] == before.candidates[:count]
        all_rows = rows(before)
        assert all(row == pytest.approx(all_rows[name], abs=1e-3) for name, row in rows(group).items())
    assert any(group.candidates[-3:] != listed[group.query].candidates[-3:] for group in groups)


def test_a_query_of_which_nothing_is_left_has_no_group(tmp_path: Path) -> None:
    documents, qrels = {"d0": "music", "d1": "water"}, {"q0": {"d1": 1}, "q1": {"d1": 1}}
    write_collection(tmp_path / "col", documents=documents, queries={"q0": "music", "q1": "water"}, qrels=qrels)
    sources = (Source(str(tmp_path / "col"), split="test"),)

    assert mine(MiningRecipe(str(tmp_path / "groups.jsonl"), sources, found_only=True, drawn=0)) == 1


def rows(group: Group) -> dict[str, tuple[float, ...]]:
    assert group.labels is not None
    columns = zip(group.labels, *(group.scores[name] for name in sorted(group.scores)), strict=True)
    return dict(zip(group.candidates, columns, strict=True))


def test_scores_are_those_of_the_teachers(folder: Path, tmp_path: Path) -> None:
    """The scores in a group are those of the offline scorer and of a BM25 search."""
    documents = texts(folder)
    scorer = score_offline(load_model(str(folder / "teacher")))
    index = BM25(list(documents.values()))
    for group in mined(folder, tmp_path / "groups.jsonl"):
        question = Question(group.query, [documents[name] for name in group.candidates])
        assert group.scores["cross"] == pytest.approx(next(scorer.score([question])), abs=2e-5)
        ((_, scores),) = index.search([group.query], len(documents))
        by_id = dict(zip(documents, scores.tolist(), strict=True))
        assert group.scores["bm25"] == pytest.approx([by_id[name] for name in group.candidates], abs=1e-5)


def test_the_seed_decides(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{place}.jsonl" for place in range(3)]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        mine(recipe(folder, file, seed=seed, teachers={}))

    one, again, other = (file.read_text() for file in files)
    assert one == again != other


def test_where_a_collection_lies_decides_nothing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    here, there = (mined(where, tmp_path / f"{n}.gz") for n, where in enumerate((folder, tmp_path / "copy")))

    def texts(groups: Iterable[Group]) -> list[Group]:
        return [replace(group, collection="", scores={}) for group in groups]

    assert texts(here) == texts(there)
    for one, other in zip(here, there, strict=True):  # batches depend on timing, and a product rounds by its batch
        for name, scores in one.scores.items():
            assert other.scores[name] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(("most", "count"), [(1, 1), (40, 2), (0, 0)])
def test_dev_groups_are_kept_apart(folder: Path, tmp_path: Path, most: int, count: int) -> None:
    """At most `dev_groups` groups with a relevant candidate are set apart; what they ask is trained on in no form."""

    def asked(groups: Iterable[Group]) -> set[frozenset[str]]:
        return {frozenset(group.query.split()) - FUNCTION_WORDS for group in groups}

    sources = tuple(Source(str(folder / "col"), queries=kind) for kind in ("judged", "keywords"))
    both = replace(recipe(folder, tmp_path / "all.jsonl", teachers={}), sources=sources)
    apart = replace(both, out=str(tmp_path / "train.jsonl"), dev_out=str(tmp_path / "dev.jsonl"))
    mine(both)
    mine(replace(apart, dev_groups=most))
    everything, dev, train = (list(read_groups(tmp_path / f"{name}.jsonl")) for name in ("all", "dev", "train"))

    assert (len(everything), len(dev)) == (8, count)
    assert all(max(group.labels or [0]) > 0 for group in dev)
    assert train == [group for group in everything if not asked([group]) & asked(dev)]
    assert all(group in everything for group in dev)


def test_a_single_judged_query_is_too_few(folder: Path, tmp_path: Path) -> None:
    """Mining needs one query to train on and another to measure with."""
    with pytest.raises(BadCollection, match="no query is left to train on beside 1 to measure with"):
        mine(recipe(folder, tmp_path / "x.jsonl", {"max_queries": 1}, dev_out=str(tmp_path / "dev.jsonl")))

    assert not list(tmp_path.iterdir())


def test_keywords_leave_out_function_words(folder: Path, tmp_path: Path) -> None:
    """Queries of keywords also keep their judgements."""
    groups = mined(folder, tmp_path / "groups.jsonl", {"queries": "keywords"}, teachers={})

    assert all(word in NOUNS for group in groups for word in group.query.split())
    assert len(groups) == 4
    assert all(group.labels is not None and max(group.labels) > 0 for group in groups)


def test_titles_are_judged_by_nobody(folder: Path, tmp_path: Path) -> None:
    """Titles are the first sentences of documents, and a search for one finds that document."""
    documents = texts(folder)
    groups = mined(folder, tmp_path / "groups.jsonl", {"queries": "titles", "max_queries": 6}, teachers={}, hard=12)

    assert len(groups) == 6
    for group in groups:
        assert group.labels is None
        assert any(documents[name].startswith(group.query) for name in group.candidates)
    write_collection(tmp_path / "col", documents={"d": "蜂回家"})
    with pytest.raises(BadCollection, match="col: no document begins with a sentence of 3"):
        mined(tmp_path, tmp_path / "none.jsonl", {"queries": "titles"}, teachers={})


def test_queries_that_are_left_out_are_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mined(folder, tmp_path / "groups.jsonl", teachers={})

    said = "col: 2 of 6 judged queries have no text or no relevant document, and are left out"
    assert said in capsys.readouterr().err


def test_a_query_without_a_word_is_left_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Search boxes that were left empty log queries without a word; together they would be one that asks nothing."""
    shutil.copytree(folder, tmp_path / "copy")
    col = tmp_path / "copy" / "col"
    write_lines(
        col / "queries.jsonl", *(f'{{"_id": "q{n}", "text": "{text}"}}' for n, text in enumerate(["river", "", " "]))
    )
    groups = mined(tmp_path / "copy", tmp_path / "groups.jsonl", teachers={})

    assert [group.query for group in groups] == ["river"]
    assert "col: 5 of 6 judged queries have no text or no relevant document" in capsys.readouterr().err


def test_ids_that_do_not_meet_are_told(folder: Path, tmp_path: Path) -> None:
    """Another export may have other ids, so the error shows the first ones of each file; an empty file is named."""
    shutil.copytree(folder, tmp_path / "copy")
    write_lines(tmp_path / "copy" / "col" / "qrels" / "train.tsv", "1\t7.0\t1")

    said = "query '1' and document '7.0' are judged first, the first query is 'q0', the first document 'd0'"
    with pytest.raises(BadCollection, match=said):
        mined(tmp_path / "copy", tmp_path / "groups.jsonl", teachers={})
    write_lines(tmp_path / "copy" / "col" / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore")
    with pytest.raises(BadCollection, match="col: there is no judgement in split 'train'"):
        mined(tmp_path / "copy", tmp_path / "groups.jsonl", teachers={})
    shutil.copy(folder / "col" / "qrels" / "train.tsv", tmp_path / "copy" / "col" / "qrels")
    write_lines(tmp_path / "copy" / "col" / "queries.jsonl")
    with pytest.raises(BadCollection, match="col: there is no query"):
        mined(tmp_path / "copy", tmp_path / "groups.jsonl", teachers={})


def test_documents_beyond_the_limit_are_not_there(folder: Path, tmp_path: Path) -> None:
    """Queries whose relevant documents lie beyond `max_documents` are left out; if none is left, it is an error."""
    groups = mined(folder, tmp_path / "groups.jsonl", {"max_documents": 9}, teachers={})

    assert len(groups) == 3
    assert {name for group in groups for name in group.candidates} <= {f"d{n}" for n in range(9)}
    with pytest.raises(BadCollection, match="col: no query of split 'train' has a text and a relevant document"):
        mined(folder, tmp_path / "none.jsonl", {"max_documents": 1}, teachers={})
    with pytest.raises(BadCollection, match="col: no document to mine from"):
        mined(folder, tmp_path / "none.jsonl", {"max_documents": 0}, teachers={})
    assert not (tmp_path / "none.jsonl").exists()


def test_from_a_collection_to_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mine` writes groups and `train` a scorer; the same commands succeed again, also from the saved recipe."""
    documents = {f"d{n}": f"{word} {random_text(random.Random(n), 4)}" for n, word in enumerate(WORDS[30:50])}
    queries = {f"q{n}": text for n, text in enumerate(list(documents.values())[:6])}
    write_collection(
        tmp_path / "col", documents=documents, queries=queries, qrels={f"q{n}": {f"d{n}": 1} for n in range(6)}
    )
    save_bi_encoder(tmp_path / "start")
    groups, out = tmp_path / "groups.jsonl.gz", tmp_path / "out"
    sources = [{"collection": tmp_path / "col", "split": "test"}]
    (tmp_path / "mine.toml").write_text(
        toml({"out": groups, "sources": sources, "teachers": {"bi": tmp_path / "start"}})
    )
    plain = {
        "out": out,
        "model": {"start": tmp_path / "start", "architecture": "poly_encoder", "config": {"num_codes": 2}},
        "data": {"groups": [groups]},
        "losses": [{"name": "margin_mse", "teacher": {"bi": 1.0}}],
        "optimiser": {"steps": 2},
        "dev": {"groups": groups},
    }
    (tmp_path / "train.toml").write_text(toml(plain))

    assert main(["mine", str(tmp_path / "mine.toml")]) == 0
    assert f"6 groups in {groups}" in capsys.readouterr().out
    for file in (tmp_path / "train.toml", out / "recipe.toml"):
        assert main(["train", str(file)]) == 0
        said = capsys.readouterr().out
        assert "2 steps, best dev nDCG@10 1.0000 of the start, which no step made better; the checkpoint is in" in said
    made = {path.name for path in out.iterdir() if path.suffix != ".json"}
    assert made == {"model.safetensors", "state.pt", "log.jsonl", "training.svg", "recipe.toml"}
    assert load_model(str(out)).scorer.architecture == "poly_encoder"
    (tmp_path / "train.toml").write_text(toml(plain | {"seed": 9}))
    assert main(["train", str(tmp_path / "train.toml")]) == 2
    assert "seed differ" in capsys.readouterr().err
    assert "seed" not in (out / "recipe.toml").read_text()

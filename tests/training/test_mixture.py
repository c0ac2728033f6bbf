"""Mixtures: what is drawn from collections, the forms of queries, and groups mined from all parts together."""

import gzip
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from support.collections import write_collection, write_lines
from support.models import save_bi_encoder, tiny_bi_encoder
from support.tokenizer import WORDS, tiny_tokenizer
from support.training import toml, write_toy

from bandrank.models.ids import RaggedIds
from bandrank.models.texts import TextEncoder
from bandrank_training.__main__ import main
from bandrank_training.batches import GroupReader
from bandrank_training.collection import BeirFolder, open_collection
from bandrank_training.dense import DenseIndex, Vectors
from bandrank_training.forms import keywords, request, split_opening
from bandrank_training.groups import BadGroups, Group, read_groups, write_groups
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.mixture import MixtureRecipe, allowed, of_length
from bandrank_training.parts import Drawn, Part, Passage, draw, measured
from bandrank_training.recipe import DataRecipe, read_recipe

PASSAGES = 60
PAGE = 5  # passages of a page


def sentence(rng: random.Random, words: int) -> str:
    return f"{' '.join(rng.choices(WORDS, k=words)).capitalize()}."


def write_pages(folder: Path) -> Path:
    """Writes pages of five passages, every second one without a title; the first of a page answers two questions."""
    rng = random.Random(folder.name)
    rows = [
        {
            "_id": f"d{n}",
            "title": f"Page {n // PAGE}" if n % PAGE % 2 == 0 else "",
            "text": " ".join(sentence(rng, 12) for _ in range(4)),
        }
        for n in range(PASSAGES)
    ]
    queries = {f"q{n}": f"what is {rng.choice(WORDS)} number {n}" for n in range(2 * PASSAGES)}
    asked = {f"q{2 * n + which}": {f"d{n}": 1} for n in range(0, PASSAGES, PAGE) for which in (0, 1)}
    names = sorted(asked, key=lambda name: int(name[1:]))
    write_collection(folder, queries=queries, qrels={name: asked[name] for name in names[4:]}, split="train")
    write_collection(folder, queries=queries, qrels={name: asked[name] for name in names[:4]}, split="dev")
    write_lines(folder / "corpus.jsonl", *map(json.dumps, rows))
    return folder


def drawn(folder: Path, **settings: Any) -> Drawn:
    part = Part(str(write_pages(folder)), "letters", **{"max_documents": 60} | settings)
    return draw(part, BeirFolder(folder), seed=3)


def test_keywords_and_requests() -> None:
    assert keywords("What is the speed of light?") == "speed light"
    assert keywords("to be or not to be") == "not"
    assert keywords("who are you") == "who are you"
    assert request(["how do bees fly", "bees and wind.", "Do they rest?"]) == (
        "How do bees fly? Bees and wind. Do they rest?"
    )


def test_an_opening_is_taken_out_of_its_text() -> None:
    """The opening ends with a sentence and makes up the text together with the rest; a short text is not split."""
    rng = random.Random(1)
    text = " ".join(sentence(rng, 15) for _ in range(8))
    for seed in range(20):
        parts = split_opening(text, random.Random(seed))
        assert parts is not None
        assert " ".join(parts) == text
        assert parts[0].endswith(".")
        assert 20 <= len(parts[0].split()) <= 90
        assert len(parts[1].split()) >= 20
    assert split_opening(" ".join(text.split()[:30]), random.Random(1)) is None


def test_queries_of_every_form(tmp_path: Path) -> None:
    """Each form has as many queries as the part asks for, each with its relevant passage."""
    made = drawn(tmp_path / "pages", questions=6, keywords=5, requests=4, openings=7, dev=0.5)
    texts = {passage.id: passage.text for passage in made.passages}
    source = {f"pages/{name}": text for name, text in BeirFolder(tmp_path / "pages").documents()}

    forms = Counter((query.form, query.split) for query in made.queries)
    assert [forms[form, "train"] for form in ("questions", "keywords", "requests", "openings")] == [6, 5, 4, 7]
    assert forms["questions", "dev"] == 3
    assert forms["openings", "dev"] > 0
    assert len({query.id for query in made.queries}) == len(made.queries)
    for query in made.queries:
        (relevant,) = query.relevant
        if query.form == "openings":
            assert source[relevant].endswith(f"{query.text} {texts[relevant]}")
        if query.form == "requests":
            assert query.text.count("?") == 2


def test_titles_ask_for_the_only_passage_of_a_page(tmp_path: Path) -> None:
    """A passage whose title becomes a query loses it, or the title would be the only thing to look for."""
    folder = tmp_path / "articles"
    rows = [
        {"_id": f"d{n}", "title": f"On {word}" if n % 3 else "Twice", "text": word} for n, word in enumerate(WORDS[:12])
    ]
    write_collection(folder, queries={"q": "one"}, qrels={"q": {"d1": 1}}, split="train")
    write_lines(folder / "corpus.jsonl", *map(json.dumps, rows))

    made = draw(Part(str(folder), "letters", 20, titles=100, dev_split="", dev=0.0), BeirFolder(folder), seed=1)

    asked = {query.text: query.relevant[0] for query in made.queries}
    assert asked == {
        row["title"]: f"articles/{row['_id']}" for row in rows if row["title"] != "Twice" and row["_id"] != "d1"
    }
    assert {passage.title for passage in made.passages} == {"", "Twice", f"On {WORDS[1]}"}


def test_neighbours_are_joined_within_their_page(tmp_path: Path) -> None:
    """No text is lost or doubled, and the passage that was relevant is part of the one that is relevant now."""
    folder = tmp_path / "pages"
    made = drawn(folder, questions=100, joined=0.6, pages=True)
    rows = list(BeirFolder(folder).titled_documents())
    texts = {passage.id: passage.text for passage in made.passages}

    assert len(made.passages) < len(rows)
    assert " ".join(texts.values()) == " ".join(text for _, _, text in rows)
    assert {passage.page for passage in made.passages} == {f"Page {n}" for n in range(60 // PAGE)}
    asked = {text: name for name, text in BeirFolder(folder).queries().items()}
    qrels = BeirFolder(folder).qrels("train") | BeirFolder(folder).qrels("dev")
    original = {name: text for name, _, text in rows}
    for query in made.queries:
        (document,) = qrels[asked[query.text]]
        assert original[document] in texts[query.relevant[0]]


def test_no_query_to_measure_with_is_trained_on(tmp_path: Path) -> None:
    """A query of the training split is left out if it differs from a dev query in function words alone, also from one
    of another part.
    """
    documents = {f"d{n}": f"{word} and more" for n, word in enumerate(WORDS[:3])}
    queries = {"q0": "what is a planet", "q1": "what is the planet", "q2": "what is a comet"}
    folder = write_collection(
        tmp_path / "col", documents=documents, queries=queries, qrels={"q0": {"d0": 1}, "q2": {"d2": 1}}, split="train"
    )
    write_collection(folder, documents=documents, queries=queries, qrels={"q1": {"d1": 1}}, split="dev")
    part = Part(str(folder), "space", 3, questions=9, dev=1.0)
    made = draw(part, BeirFolder(folder), seed=1)

    assert {(query.text, query.split) for query in made.queries} == {
        ("what is a comet", "train"),
        ("what is the planet", "dev"),
    }
    other = write_collection(tmp_path / "other", queries={"q": "The comet?"}, qrels={"q": {"d": 1}}, split="dev")
    made = draw(part, BeirFolder(folder), seed=1, apart=measured(Part(str(other), "space", 3), BeirFolder(other)))
    assert [query.text for query in made.queries] == ["what is the planet"]


def test_no_copy_of_a_passage_holds_an_opening(tmp_path: Path) -> None:
    """Else the copy, which has all words of the query, would be a negative of it."""
    texts = [" ".join(sentence(random.Random(seed), 12) for _ in range(6)) for seed in (1, 1, 2)]
    documents = {f"d{n}": text for n, text in enumerate(texts)}
    folder = write_collection(tmp_path / "col", documents=documents, split="train")
    made = draw(Part(str(folder), "letters", 3, openings=9, dev_split=""), BeirFolder(folder), seed=1)

    assert [query.relevant for query in made.queries] == [("col/d2",)]


def test_a_question_that_was_asked_twice_keeps_all_its_answers(tmp_path: Path) -> None:
    """One question under two ids becomes one query, with the relevant passages of both."""
    documents = {f"d{n}": f"{word} and more" for n, word in enumerate(WORDS[:3])}
    queries, qrels = {"q0": "what is it", "q1": "what is it"}, {"q0": {"d0": 1}, "q1": {"d1": 1, "d0": 0}}
    folder = write_collection(tmp_path / "col", documents=documents, queries=queries, qrels=qrels, split="train")
    made = draw(Part(str(folder), "letters", 3, questions=9, dev_split=""), BeirFolder(folder), seed=1)

    assert [(query.text, query.relevant) for query in made.queries] == [("what is it", ("col/d0", "col/d1"))]


def test_long_passages_are_cut_at_a_word() -> None:
    """Where no spaces are, at a character; such a text was cut to nothing."""
    texts = ["many more new " * 10, "\u6c34" * 40, "\u6c34 " + "\u706b" * 39, "well"]
    encoder = TextEncoder(tiny_tokenizer(), tiny_bi_encoder())
    passages = [Passage(text, "", text, "") for text in texts]

    cut = [each.text for each in of_length(passages, encoder, (2, 5))]

    assert cut == ["many more new many more", "\u6c34" * 5, "\u6c34 " + "\u706b" * 4]


def test_passages_come_in_runs(tmp_path: Path) -> None:
    """As many passages as asked for are drawn in runs of neighbours, and each query is about one of them."""
    made = drawn(tmp_path / "pages", questions=100, max_documents=40)
    numbers = [int(passage.id.removeprefix("pages/d")) for passage in made.passages]

    assert len(numbers) == 40
    assert numbers == sorted(numbers)
    assert sum(after - before == 1 for before, after in pairwise(numbers)) >= 38
    assert {each for query in made.queries for each in query.relevant} <= {passage.id for passage in made.passages}


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ({"a": 900, "b": 100, "c": 100, "d": 100, "e": 100}, 0.25),
        ({"a": 5, "b": 5, "c": 5}, 0.34),
        ({"a": 10, "b": 1}, 0.25),
    ],
)
def test_no_domain_has_more_than_its_share(counts: dict[str, int], share: float) -> None:
    """Smaller domains keep all they have; two domains cannot both have less than a quarter, and stay as they are."""
    kept = {domain: part * counts[domain] for domain, part in allowed(counts, share).items()}

    if len(counts) * share > 1:
        assert max(kept.values()) <= share * sum(kept.values()) + 1
        assert all(kept[domain] == count for domain, count in counts.items() if count <= min(counts.values()))
    else:
        assert kept == counts


def test_the_share_of_bm25_does_not_grow_with_the_query(tmp_path: Path) -> None:
    """A query with all its words twice has twice the score and the same share."""
    folder = write_collection(
        tmp_path / "col",
        documents={"a": "cat dog mouse", "b": "cat bird", "c": "fish"},
        queries={"q0": "cat dog", "q1": "cat dog cat dog"},
        qrels={"q0": {"a": 1}, "q1": {"a": 1}},
        split="train",
    )
    mine(MiningRecipe(str(tmp_path / "out.jsonl"), (Source(str(folder)),), random=0))

    one, two = sorted(read_groups(tmp_path / "out.jsonl"), key=lambda group: len(group.query))
    assert two.scores["bm25"] == pytest.approx([2 * score for score in one.scores["bm25"]], abs=1e-4)
    assert two.scores["bm25_share"] == pytest.approx(one.scores["bm25_share"], abs=1e-4)
    assert 0 < one.scores["bm25_share"][0] < 1


def test_a_domain_can_be_left_out(tmp_path: Path) -> None:
    """A domain can be left out of training; to leave out all of them, or an unknown one, is an error."""
    toy = write_toy(tmp_path)
    groups = [replace(group, domain="ab"[n % 2]) for n, group in enumerate(read_groups(toy["groups"]))]
    write_groups(toy["groups"], groups)

    texts = TextEncoder(tiny_tokenizer(), tiny_bi_encoder())

    def queries(*without: str) -> set[tuple[int, ...]]:
        recipe = DataRecipe((str(toy["groups"]),), batch_rows=1, without=without)
        batches = islice(GroupReader(recipe, texts, seed=1).batches(), len(groups))
        return {tuple(batch.batch.queries[0].tolist()) for batch in batches}

    def of_domains(*domains: str) -> set[tuple[int, ...]]:
        return {tuple(texts.query(group.query)[0]) for group in groups if group.domain in domains}

    assert queries("a") == of_domains("b")
    assert queries() == of_domains("a", "b")
    with pytest.raises(BadGroups, match=r"no groups in .* but of a, b"):
        queries("a", "b")
    with pytest.raises(BadGroups, match="without: no group is of 'c'; there are a, b"):
        queries("a", "c")


def test_the_command_makes_a_collection_and_its_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates of all parts are negatives of each query. A second run makes what is missing, and what depends on
    settings or a model that have changed.
    """
    save_bi_encoder(tmp_path / "model")
    parts = [
        {
            "collection": str(write_pages(tmp_path / name)),
            "domain": name,
            "max_documents": 60,
            "questions": 8,
            "pages": True,
        }
        for name in ("one", "two")
    ]
    values = {
        "out": str(tmp_path / "out"),
        "mining": {"retriever": str(tmp_path / "model"), "depth": 20},
        "parts": parts,
    }
    (tmp_path / "recipe.toml").write_text(toml(values), encoding="utf-8")
    assert isinstance(read_recipe(tmp_path / "recipe.toml", MixtureRecipe), MixtureRecipe)

    assert main(["mix", str(tmp_path / "recipe.toml")]) == 0

    counts = capsys.readouterr().out
    assert counts == (tmp_path / "out" / "counts.md").read_text(encoding="utf-8")
    assert counts.splitlines()[-1].startswith("| all |  | 120 | 16 |")
    groups = list(read_groups(tmp_path / "out" / "groups.jsonl.gz"))
    assert Counter(group.domain for group in groups) == {"one": 8, "two": 8}
    negatives = {(group.domain, each.partition("/")[0]) for group in groups for each in group.candidates[1:]}
    assert negatives == {(asked, found) for asked in ("one", "two") for found in ("one", "two")}
    mixture = open_collection(tmp_path / "out")
    assert set(mixture.queries()) >= {query for part in ("one", "two") for query in mixture.qrels(f"{part}.dev")}

    lines = {
        name: gzip.decompress((tmp_path / "out" / name).read_bytes()) for name in ("groups.jsonl.gz", "dev.jsonl.gz")
    }
    assert lines["dev.jsonl.gz"]
    (tmp_path / "out" / "groups.jsonl.gz").unlink()
    encoded: list[int] = []
    vectors = DenseIndex._vectors

    def watch(index: DenseIndex, ids: RaggedIds) -> Vectors:
        encoded.append(len(ids))
        return vectors(index, ids)

    monkeypatch.setattr(DenseIndex, "_vectors", watch)
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 0
    assert gzip.decompress((tmp_path / "out" / "groups.jsonl.gz").read_bytes()) == lines["groups.jsonl.gz"]
    assert not encoded
    fewer = values | {"mining": {"retriever": str(tmp_path / "model"), "depth": 20, "hard": 3}}
    (tmp_path / "recipe.toml").write_text(toml(fewer), encoding="utf-8")
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 0
    again = list(read_groups(tmp_path / "out" / "groups.jsonl.gz"))
    assert max(len(group.candidates) for group in again) < min(len(group.candidates) for group in groups)
    assert not encoded  # the vectors of the same texts are there
    shutil.rmtree(tmp_path / "model")
    save_bi_encoder(tmp_path / "model", pooling="cls")
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 0
    assert encoded
    (tmp_path / "recipe.toml").write_text(toml(values | {"seed": 2}), encoding="utf-8")
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 2
    assert "is a mixture of other parts or texts; choose another `out`" in capsys.readouterr().err
    (tmp_path / "recipe.toml").write_text(toml(values), encoding="utf-8")
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 0
    corpus = tmp_path / "one" / "corpus.jsonl"
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("Page 1", "Sheet 1"), encoding="utf-8")
    assert main(["mix", str(tmp_path / "recipe.toml")]) == 2
    assert "is a mixture of other parts or texts; choose another `out`" in capsys.readouterr().err


def test_a_group_of_an_older_file_has_no_domain() -> None:
    """Groups in older files have no domain; their area is their collection."""
    assert Group("col", "q", ["a"], None, {}).area == "col"

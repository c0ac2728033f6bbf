"""Makes the groups of one source in parts, so that a killed run has little to repeat."""

import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from bandrank_training.bm25 import BM25
from bandrank_training.collection import BadCollection, Collection, by_text, documents_of
from bandrank_training.dense import DenseIndex
from bandrank_training.forms import keywords
from bandrank_training.groups import Group, read_kept, write_groups
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.scoring import OfflineScorer, Question

PART = 256  # queries per part


class Corpus:
    """A collection's texts by index, and BM25 over them."""

    def __init__(self, collection: Collection, max_documents: int) -> None:
        self.collection = collection
        documents = documents_of(collection, most=max_documents)
        if not documents:
            raise BadCollection(f"{collection.name}: no document to mine from")
        self.ids, self.texts = list(documents), list(documents.values())
        self.number = {document_id: number for number, document_id in enumerate(self.ids)}
        self.bm25 = BM25(self.texts)
        pages = collection.pages()
        self.page = [pages.get(document_id, text) for document_id, text in documents.items()]  # copies share a page


@dataclass(frozen=True)
class Miner:
    """Makes the groups of a source.

    dense: the retriever's index of the corpus, if the recipe has a retriever.  teachers: by the name of their scores.
    """

    recipe: MiningRecipe
    source: Source
    corpus: Corpus
    dense: DenseIndex | None
    teachers: Mapping[str, OfflineScorer]

    def mine(self, kept: Path | None) -> Iterator[Group]:
        """Yields the groups. kept: a folder of finished parts, which are not made again."""
        collection = self.corpus.collection
        # Seeded by name, so that the same collection in another folder gives the same groups.
        seed = f"{self.recipe.seed} {replace(self.source, collection=collection.name)}"
        asked = queries_of(self.source, self.corpus, random.Random(seed))
        with tqdm(total=len(asked), desc=f"{collection.name} {self.source.queries}", unit="query") as bar:
            for begin in range(0, len(asked), PART):
                part = asked[begin : begin + PART]
                groups = self._part(part, random.Random(f"{begin} {seed}"), bar)
                if kept is None:
                    yield from groups
                    continue
                file = kept / f"{begin}.jsonl.gz"
                if file.is_file():
                    bar.update(len(part))
                else:
                    write_groups(file, groups)
                yield from read_kept(file)

    def _part(
        self, asked: Sequence[tuple[str, Mapping[str, int]]], chance: random.Random, bar: "tqdm[NoReturn]"
    ) -> Iterator[Group]:
        recipe, source, corpus, dense = self.recipe, self.source, self.corpus, self.dense
        texts = [text for text, _ in asked]
        judged: list[dict[int, int]] = []
        pools: list[list[int]] = []
        cosines: list[list[float]] = []
        bm25: list[list[float]] = []
        nearest = dense.search(texts, recipe.depth) if dense else repeat(None)
        for (_, judgements), (best, by_words), near in zip(
            asked, corpus.bm25.search(texts, recipe.depth), nearest, strict=False
        ):
            # Some collections mark spam with -1 or -2. Labels make no difference, and -1 is UNKNOWN.
            known = {corpus.number[name]: max(0, label) for name, label in judgements.items() if name in corpus.number}
            by_search = [*best.tolist(), *(near[0].tolist() if near else [])]
            usable = [item for item in known.items() if not recipe.found_only or item[0] in by_search]
            kept = dict(sorted(usable, key=lambda item: -item[1])[: recipe.max_judged])
            others = [chance.randrange(len(corpus.ids)) for _ in range(recipe.random)]
            relevant = [number for number, label in known.items() if label > 0]
            answered = {of[number] for of in (corpus.page, corpus.texts) for number in relevant}
            found = dict.fromkeys([*by_search, *others])
            judged.append(kept)
            # Neither a relevant document that was left out nor others of its page, nor copies of it on other pages, are
            # negatives, unless judged so.
            negatives = [
                each
                for each in found
                if known.get(each) == 0 or answered.isdisjoint((corpus.page[each], corpus.texts[each]))
            ]
            pools.append([*kept, *(each for each in negatives if each not in kept)])
            cosines.append(near[1][pools[-1]].tolist() if near else [])
            bm25.append(by_words[pools[-1]].tolist())
        columns = [
            teacher.score(
                Question(text, [corpus.texts[number] for number in pool])
                for text, pool in zip(texts, pools, strict=True)
            )
            for teacher in self.teachers.values()
        ]
        rows = zip(asked, judged, pools, cosines, bm25, *columns, strict=True)
        for (text, _), known, pool, cosine, of_words, *by_teacher in rows:
            bar.update()
            scores = dict(zip(self.teachers, by_teacher, strict=True))
            if recipe.retriever:
                scores["retriever"] = cosine
            scores["bm25"] = of_words
            chosen = _choose(recipe, known, pool, scores)
            most = corpus.bm25.most(text) or 1.0
            scores["bm25_share"] = [score / most for score in scores["bm25"]]
            if recipe.drawn is not None:
                others = chosen[len(known) :]
                chosen = chosen[: len(known)] + chance.sample(others, min(recipe.drawn, len(others)))
            if not chosen:
                continue
            yield Group(
                collection=source.collection,
                query=text,
                candidates=[corpus.ids[pool[index]] for index in chosen],
                labels=None if source.queries == "titles" else [known.get(pool[index], 0) for index in chosen],
                scores={name: [values[index] for index in chosen] for name, values in scores.items()},
                domain=source.domain,
            )


def queries_of(source: Source, corpus: Corpus, chance: random.Random) -> list[tuple[str, dict[str, int]]]:
    """The distinct texts of the source's queries, with their judgements. Raises BadCollection."""
    if source.queries == "titles":
        first_words = [re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0] for text in corpus.texts]
        fitting = [words for words in dict.fromkeys(first_words) if 3 <= len(words.split()) <= 30]
        if not fitting:
            raise BadCollection(f"{corpus.collection.name}: no document begins with a sentence of 3 to 30 words")
        return [(text, {}) for text in chance.sample(fitting, min(source.max_queries, len(fitting)))]
    queries, qrels = corpus.collection.queries(), corpus.collection.qrels(source.split)
    if not (queries and qrels):
        missing = "no query" if qrels else f"no judgement in split {source.split!r}"
        raise BadCollection(f"{corpus.collection.name}: there is {missing}")
    asked = {name: queries[name] for name in sorted(qrels.keys() & queries.keys()) if queries[name].strip()}
    if source.queries == "keywords":
        asked = {name: keywords(text) for name, text in asked.items()}
    judged = {
        text: labels
        for text, labels in by_text((text, qrels[name]) for name, text in asked.items()).items()
        if any(label > 0 and document in corpus.number for document, label in labels.items())
    }
    if not judged:
        said = f"{corpus.collection.name}: no query of split {source.split!r} has a text and a relevant document"
        first = [next(iter(names)) for names in (qrels, next(iter(qrels.values())), queries)]
        ids = "query {!r} and document {!r} are judged first, the first query is {!r}, the first document {!r}"
        raise BadCollection(f"{said}; {ids.format(*first, corpus.ids[0])}")
    if left_out := len(qrels) - sum(text in judged for text in asked.values()):
        said = f"{left_out} of {len(qrels)} judged queries have no text or no relevant document, and are left out"
        print(f"{corpus.collection.name}: {said}", file=sys.stderr)  # noqa: T201
    return [(text, judged[text]) for text in chance.sample(list(judged), min(source.max_queries, len(judged)))]


def _choose(
    recipe: MiningRecipe, known: Mapping[int, int], pool: Sequence[int], scores: Mapping[str, Sequence[float]]
) -> list[int]:
    """Chooses indices of the pool: the judged, the hardest by each teacher in turn, and the random ones at the end."""
    chosen = dict.fromkeys(range(len(known)))
    rankings = [sorted(range(len(pool)), key=lambda index: -values[index]) for values in scores.values()]
    size = len(known) + min(recipe.hard, len(pool) - len(known))
    for indices in zip(*rankings, strict=True):
        for index in indices:
            if len(chosen) < size:
                chosen[index] = None
    chosen |= dict.fromkeys(range(max(len(known), len(pool) - recipe.random), len(pool)))
    return list(chosen)

"""What a mixture takes of one collection: runs of passages, some of them joined, and queries in every form."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bandrank_training.collection import BadCollection, BeirFolder, by_text
from bandrank_training.forms import asked_for, keywords, request, split_opening, words
from bandrank_training.recipe import check_least

SPLITS = ("train", "dev")
FORMS = ("questions", "keywords", "requests", "openings", "titles")
RUN = 20  # neighbouring passages drawn together, so that some can be joined
JOINED_WORDS = (120, 320)
QUESTIONS_OF_A_REQUEST = 4


@dataclass(frozen=True)
class Part:
    """A collection's part in a mixture.

    domain: parts of one domain count together.  max_documents: drawn in runs of neighbours from the whole corpus.
    questions, keywords, requests, openings, titles: the most training queries of each form. A request is several
    questions about one relevant passage. Openings and titles are cut from passages that no query asks for; the rest of
    the passage is relevant to them.  dev: the most dev queries of each form, as a share of its training queries.
    train_split, dev_split: of the qrels; without a dev split, dev has only openings and titles.
    joined: the share of passages joined with their successors on the page.  blank_titles: the share of titles left out.
    pages: a passage without a title belongs to the page of the one before it.  page_answers: passages of one page may
    answer the same question, so they are never each other's negatives.
    """

    collection: str
    domain: str
    max_documents: int
    questions: int = 0
    keywords: int = 0
    requests: int = 0
    openings: int = 0
    titles: int = 0
    dev: float = 0.1
    train_split: str = "train"
    dev_split: str = "dev"
    joined: float = 0.0
    blank_titles: float = 0.0
    pages: bool = False
    page_answers: bool = False

    def __post_init__(self) -> None:
        check_least(self, 0, "max_documents", *FORMS, "dev")

    @property
    def name(self) -> str:
        """The name of the collection's folder."""
        return Path(self.collection).name


@dataclass(frozen=True)
class Passage:
    """A candidate. page: the page it is part of; empty if unknown."""

    id: str
    title: str
    text: str
    page: str


@dataclass(frozen=True)
class Query:
    """A query of one form, and the ids of the passages that are relevant to it."""

    id: str
    text: str
    relevant: tuple[str, ...]
    form: str
    split: str


@dataclass(frozen=True)
class Drawn:
    """What was drawn of a part."""

    part: Part
    passages: Sequence[Passage]
    queries: Sequence[Query]

    def keeping(self, passages: Sequence[Passage]) -> "Drawn":
        """Keeps these passages, and the queries to which one of them is relevant."""
        kept = {passage.id for passage in passages}
        queries = [replace(one, relevant=tuple(each for each in one.relevant if each in kept)) for one in self.queries]
        return Drawn(self.part, passages, [one for one in queries if one.relevant])


def measured(part: Part, collection: BeirFolder) -> set[str]:
    """What the part's queries to measure with ask, as `asked_for` has it. Raises BadCollection."""
    judged = collection.qrels(part.dev_split) if part.dev_split else {}
    return {asked_for(text) for query_id, text in collection.queries().items() if query_id in judged}


def draw(part: Part, collection: BeirFolder, seed: int, *, apart: Iterable[str] = ()) -> Drawn:
    """Draws passages and queries; ids begin with the part's name. Raises BadCollection.

    apart: what other parts measure with; no query to train on asks it.
    """
    chance = random.Random(f"{seed} {part.name}")
    passages, now_in = _join(part, _runs(part, collection, chance), chance)
    drawer = _Drawer(part, passages, chance)
    queries = collection.queries()
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for split, name in zip(SPLITS, (part.train_split, part.dev_split), strict=True):
        qrels = collection.qrels(name) if name else {}
        texts = ((queries.get(query_id, ""), labels) for query_id, labels in qrels.items())
        judged = by_text((text, labels) for text, labels in texts if text.strip())
        known[split] = {text: relevant for text, labels in judged.items() if (relevant := _relevant(labels, now_in))}
    kept_out = {*apart, *map(asked_for, known["dev"])}
    known["train"] = {text: each for text, each in known["train"].items() if asked_for(text) not in kept_out}
    for split, asked in known.items():
        drawer.asked(asked, split)
    drawer.unasked({each for asked in known.values() for relevant in asked.values() for each in relevant})
    if not drawer.queries:
        raise BadCollection(f"{collection.name}: nothing asks for any of the {len(passages)} passages drawn")
    return Drawn(part, list(drawer.passages.values()), drawer.queries)


def _relevant(labels: Mapping[str, int], now_in: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(now_in[each] for each, label in labels.items() if label > 0 and each in now_in))


def _runs(part: Part, collection: BeirFolder, chance: random.Random) -> Iterator[Passage]:
    """Yields runs of neighbours in the order of the corpus."""
    rows = list(collection.titled_documents())
    begins = list(range(0, len(rows), RUN))
    chosen = sorted(chance.sample(begins, min(len(begins), max(1, part.max_documents // RUN))))
    wanted = {begin + place for begin in chosen for place in range(RUN)}
    page = ""
    for number, (document_id, title, text) in enumerate(rows):
        page = title or (page if part.pages else "")
        if number in wanted:
            blank = chance.random() < part.blank_titles
            yield Passage(f"{part.name}/{document_id}", "" if blank else title, text, page)


def _join(part: Part, passages: Iterator[Passage], chance: random.Random) -> tuple[list[Passage], dict[str, str]]:
    """Joins some passages. Returns all passages, and their new ids by their ids in the collection."""
    joined: list[Passage] = []
    now_in: dict[str, str] = {}
    wanted = 0  # words of the passage that is being joined
    for passage in passages:
        last = joined[-1] if joined else None
        if last is not None and len(words(last.text)) < wanted and passage.page and passage.page == last.page:
            joined[-1] = replace(last, text=f"{last.text} {passage.text}")
        else:
            wanted = chance.randint(*JOINED_WORDS) if chance.random() < part.joined else 0
            joined.append(passage)
        now_in[passage.id.removeprefix(f"{part.name}/")] = joined[-1].id
    return joined, now_in


class _Drawer:
    """Makes queries, and cuts them out of passages where they come from one."""

    def __init__(self, part: Part, passages: Sequence[Passage], chance: random.Random) -> None:
        self.part, self.chance = part, chance
        self.passages = {passage.id: passage for passage in passages}
        self.queries: list[Query] = []

    def asked(self, asked: Mapping[str, tuple[str, ...]], split: str) -> None:
        """Adds judged queries as they are, as keywords, and joined into requests. asked: relevant ids by query."""
        share = 1.0 if split == "train" else self.part.dev
        for text in self._some(asked, share * self.part.questions):
            self._add("questions", text, asked[text], split)
        for text in self._some(asked, share * self.part.keywords):
            self._add("keywords", keywords(text), asked[text], split)
        of_passage: dict[str, list[str]] = {}
        for text, relevant in sorted(asked.items()):
            of_passage.setdefault(relevant[0], []).append(text)
        several = [each for each, texts in of_passage.items() if len(texts) > 1]
        for each in self._some(several, share * self.part.requests):
            count = min(len(of_passage[each]), self.chance.randint(2, QUESTIONS_OF_A_REQUEST))
            self._add("requests", request(self.chance.sample(of_passage[each], count)), (each,), split)

    def unasked(self, asked_for: set[str]) -> None:
        """Adds openings and titles of passages that no query asks for, and of which there is no copy: it would answer
        too.
        """
        texts = Counter(passage.text for passage in self.passages.values())
        free = [each for each in self.passages.values() if each.id not in asked_for and texts[each.text] == 1]
        self.chance.shuffle(free)
        titles = Counter(passage.page for passage in self.passages.values())
        rest = self._take("titles", self.part.titles, free, lambda one: self._title(one, titles))
        self._take("openings", self.part.openings, rest, self._opening)

    def _take(
        self, form: str, most: int, free: Sequence[Passage], make: Callable[[Passage], tuple[str, Passage] | None]
    ) -> list[Passage]:
        """Adds queries of a form to train on and to measure with; returns the passages that are left."""
        left, count = [], 0
        for passage in free:
            made = make(passage) if count < most * (1 + self.part.dev) else None
            if made is None:
                left.append(passage)
                continue
            text, changed = made
            self.passages[passage.id] = changed
            self._add(form, text, (passage.id,), "train" if count < most else "dev")
            count += 1
        return left

    @staticmethod
    def _title(passage: Passage, titles: Mapping[str, int]) -> tuple[str, Passage] | None:
        unique = passage.page and titles[passage.page] == 1
        return (passage.page, replace(passage, title="")) if unique else None

    def _opening(self, passage: Passage) -> tuple[str, Passage] | None:
        parts = split_opening(passage.text, self.chance)
        return (parts[0], replace(passage, title="", text=parts[1])) if parts else None

    def _some(self, of: Iterable[str], most: float) -> list[str]:
        known = sorted(of)
        return self.chance.sample(known, min(len(known), round(most)))

    def _add(self, form: str, text: str, relevant: tuple[str, ...], split: str) -> None:
        self.queries.append(Query(f"{self.part.name}/{form}/{len(self.queries)}", text, relevant, form, split))

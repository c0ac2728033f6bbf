"""Training batches: the order in which groups are read, and what the losses of a batch compare."""

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.tokenizer import CLS_ID, SEP_ID, WORDS, tiny_tokenizer
from support.training import write_toy

from bandrank.models.ids import ID_BYTES
from bandrank.models.scorer import Scorer
from bandrank.models.texts import TextEncoder
from bandrank_training.ahead import read_ahead
from bandrank_training.batches import GroupReader, TrainingBatch, choose, read_documents
from bandrank_training.collection import BadCollection
from bandrank_training.groups import BadGroups, Group, read_groups, write_groups
from bandrank_training.losses import UNKNOWN, LossRecipe
from bandrank_training.recipe import DataRecipe

COUNT = 23  # groups of the toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A collection and groups of five candidates; some are not judged, and one lacks the second teacher's scores."""
    paths = write_toy(tmp_path_factory.mktemp("toy"), count=COUNT)
    groups = list(read_groups(paths["groups"]))
    groups[3:20:4] = [replace(group, labels=None) for group in groups[3:20:4]]
    groups[5] = replace(groups[5], scores={"good": groups[5].scores["good"]})
    write_groups(paths["groups"], groups)
    return paths


def reader(toy: dict[str, Path], *, seed: int = 1, scorer: Scorer | None = None, **more: object) -> GroupReader:
    """Returns a reader of the toy's groups, for a bi-encoder by default. more: fields of DataRecipe."""
    recipe = DataRecipe(groups=(str(toy["groups"]),), **{"batch_rows": 100, "group_size": 4} | more)  # type: ignore[arg-type]
    return GroupReader(recipe, TextEncoder(tiny_tokenizer(), scorer or tiny_bi_encoder()), seed=seed)


def shown(batch: TrainingBatch) -> tuple[object, ...]:
    """Returns all that a batch holds, as values that can be compared."""
    pieces = [part.values.tolist() for part in (batch.batch.queries, batch.batch.candidates)]
    teachers = {name: scores.tolist() for name, scores in batch.teachers.items()}
    bounds = batch.batch.cu_candidates.tolist()
    return pieces, bounds, batch.texts, batch.labels.tolist(), teachers, batch.groups_read


@pytest.mark.parametrize("groups_read", [0, 7])
def test_batches_that_are_read_ahead_are_the_same(toy: dict[str, Path], groups_read: int) -> None:
    ahead = [shown(batch) for batch in islice(read_ahead(reader(toy), groups_read), 12)]

    assert ahead == [shown(batch) for batch in islice(reader(toy).batches(groups_read), 12)]


def test_what_is_wrong_with_a_batch_that_is_read_ahead_is_said(toy: dict[str, Path], tmp_path: Path) -> None:
    groups = shutil.copy(toy["groups"], tmp_path)
    read = reader({"groups": Path(groups)})
    Path(groups).write_bytes(b"not a group")

    with pytest.raises(BadGroups, match="line 1"):
        next(read_ahead(read))


def test_the_seed_decides(toy: dict[str, Path]) -> None:
    one, again, other = ([shown(batch) for batch in islice(reader(toy, seed=seed).batches(), 12)] for seed in (1, 1, 2))

    assert one == again
    assert one != other


@settings(max_examples=10)
@given(skipped=st.integers(0, 20), size=st.sampled_from([2, 5]), rows=st.sampled_from([60, 100, 300]))
def test_a_reader_goes_on_where_another_stopped(toy: dict[str, Path], skipped: int, size: int, rows: int) -> None:
    """A reader that starts where any batch ended gives the batches that followed it, also across epochs."""
    read = reader(toy, group_size=size, batch_rows=rows)
    batches = list(islice(read.batches(), skipped + 4))
    stopped = batches[skipped - 1].groups_read if skipped else 0

    resumed = islice(reader(toy, group_size=size, batch_rows=rows).batches(stopped), 4)

    assert [shown(batch) for batch in resumed] == [shown(batch) for batch in batches[skipped:]]


def test_every_group_is_read_once_an_epoch(toy: dict[str, Path]) -> None:
    """Groups come in the order of the file, and `groups_read` counts them."""
    expected = [
        tiny_tokenizer().encode(group.query, add_special_tokens=False).ids for group in read_groups(toy["groups"])
    ]
    seen: list[list[int]] = []
    for batch in reader(toy).batches():
        queries = batch.batch.queries
        seen += [queries[place].tolist() for place in range(len(queries))]
        assert batch.groups_read == len(seen)
        if len(seen) >= 2 * COUNT:
            break

    assert seen[: 2 * COUNT] == [[CLS_ID, *ids, SEP_ID] for ids in 2 * expected]


def test_files_are_read_in_turn(toy: dict[str, Path]) -> None:
    files = (str(toy["groups"]), str(toy["dev"]))
    read = GroupReader(DataRecipe(files, batch_rows=1), TextEncoder(tiny_tokenizer(), tiny_bi_encoder()), seed=1)
    queries = [batch.batch.queries[0].tolist() for batch in islice(read.batches(), 2 * (COUNT + 6))]

    assert queries[: COUNT + 6] == queries[COUNT + 6 :]
    assert len({tuple(query) for query in queries}) > COUNT


def test_candidates_are_drawn_anew_in_each_epoch(toy: dict[str, Path]) -> None:
    batches = list(islice(reader(toy, batch_rows=1).batches(), 2 * COUNT))

    assert [batch.texts for batch in batches[:COUNT]] != [batch.texts for batch in batches[COUNT:]]
    assert batches[0].batch.queries.values.tolist() == batches[COUNT].batch.queries.values.tolist()


def test_a_batch_keeps_its_budget(toy: dict[str, Path]) -> None:
    """A batch exceeds `batch_rows` only if it is a single group, and ends only where the next group would not fit."""
    batches = list(islice(reader(toy, batch_rows=90).batches(), 20))

    def rows(batch: TrainingBatch) -> int:  # as a cross-encoder counts them, with a [CLS] for each candidate
        candidates = batch.batch.candidates
        return len(batch.batch.queries.values) + len(candidates.values) + len(candidates)

    assert any(len(batch.batch.queries) > 1 for batch in batches)
    assert all(rows(batch) <= 90 or len(batch.batch.queries) == 1 for batch in batches)
    alone = list(islice(reader(toy, batch_rows=1).batches(), batches[-1].groups_read + 1))
    assert [batch.groups_read for batch in alone] == list(range(1, len(alone) + 1))
    for batch in batches:
        assert rows(batch) + rows(alone[batch.groups_read]) > 90


@pytest.mark.parametrize("make", [tiny_bi_encoder, tiny_cross_encoder])
def test_a_long_candidate_is_cut(toy: dict[str, Path], make: type[Scorer]) -> None:
    """A candidate keeps `max_candidate_tokens` tokens, of which [CLS] and [SEP] are part, and ends with [SEP]."""
    lengths: Counter[int] = Counter()
    for batch in islice(reader(toy, scorer=make(), max_candidate_tokens=5).batches(), 10):
        candidates = batch.batch.candidates
        for place, text in enumerate(batch.texts):
            ids = candidates[place].tolist()
            lengths[len(ids)] += 1
            assert ids[-1] == SEP_ID
            prefix = [CLS_ID] if ids[0] == CLS_ID else []
            pieces = tiny_tokenizer().encode(text, add_special_tokens=False).ids
            assert ids == [*prefix, *pieces[: 4 - len(prefix)], SEP_ID]

    assert max(lengths) == 5
    assert len(lengths) > 1


def test_no_more_is_kept_of_a_candidate_than_is_read(toy: dict[str, Path]) -> None:
    """All candidates of a run stay in memory, so those parts of long documents that are never read must not."""
    read = reader(toy, max_candidate_tokens=5)
    list(islice(read.batches(), 10))

    kept = [len(pieces) // ID_BYTES for pieces in read._pieces.values()]
    assert max(kept) == 3


@settings(max_examples=50)
@given(
    labels=st.none() | st.lists(st.integers(0, 2), min_size=1, max_size=9),
    size=st.integers(1, 6),
    most=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_chosen_candidates(labels: list[int] | None, size: int, most: int, seed: int) -> None:
    """`choose` draws at most `most` relevant candidates, fills up with irrelevant ones, and draws none twice."""
    count = len(labels) if labels is not None else 7
    group = Group("c", "q", [f"d{place}" for place in range(count)], labels, {})
    known = labels or [0] * count
    num_relevant = sum(label > 0 for label in known)

    chosen = choose(group, size, most, random.Random(seed))

    assert len(set(chosen)) == len(chosen)
    relevant = sum(known[place] > 0 for place in chosen)
    assert relevant == min(num_relevant, most, size)
    assert len(chosen) == min(size, relevant + count - num_relevant)
    assert choose(group, size, most, random.Random(seed)) == chosen


def test_what_is_known_of_a_candidate_stays_with_it(toy: dict[str, Path]) -> None:
    """A candidate keeps its text, label and teachers' scores; teachers that lack a group are not in its batch."""
    groups = list(read_groups(toy["groups"]))
    texts = read_documents([toy["groups"]])
    for batch in islice(reader(toy, batch_rows=120).batches(), 8):
        begin = batch.groups_read - len(batch.batch.queries)
        own = groups[begin : batch.groups_read]
        assert set(batch.teachers) == set.intersection(*(set(group.scores) for group in own))
        for group, bounds in zip(own, batch.batch.groups(), strict=True):
            for place in range(bounds[1].start, bounds[1].stop):
                number = [texts[group.collection, name] for name in group.candidates].index(batch.texts[place])
                assert batch.labels[place] == (UNKNOWN if group.labels is None else group.labels[number])
                for name, scores in batch.teachers.items():
                    assert scores[place].item() == pytest.approx(group.scores[name][number])


def test_an_answer_that_was_not_drawn_is_no_negative_of_its_query(toy: dict[str, Path], tmp_path: Path) -> None:
    """A relevant candidate that was not drawn may come into the batch with another query, or the same one again."""
    texts = read_documents([toy["groups"]])
    ids = [name for _, name in texts][:4]
    rows = [
        ("who", [*ids[:2], ids[3]], [1, 1, 0]),
        ("what", [ids[1], ids[3]], [1, 0]),
        ("who", [ids[2], ids[3]], [1, 0]),
    ]
    groups = [Group(str(toy["collection"]), query, names, labels, {}) for query, names, labels in rows]
    write_groups(tmp_path / "groups.jsonl", groups)
    answers = {"who": ids[:3], "what": [ids[1]]}
    for batch in islice(reader({"groups": tmp_path / "groups.jsonl"}, batch_rows=1000, batch_groups=3).batches(), 6):
        labels = batch.everyone_scored(torch.zeros(3 * len(batch.texts))).labels
        for (query, _, _), row in zip(rows, labels.tolist(), strict=True):
            negatives = {text for text, label in zip(batch.texts, row, strict=True) if label == 0}
            assert not negatives & {texts[str(toy["collection"]), name] for name in answers[query]}


def training_batch(
    texts: Sequence[Sequence[str]], labels: Sequence[Sequence[int]], answers: Sequence[Sequence[str]]
) -> TrainingBatch:
    """Returns a batch of these candidates, grouped by query, which the teacher scores 0, 1, 2, ..."""
    flat = [text for group in texts for text in group]
    queries = [[CLS_ID, SEP_ID] for _ in texts]
    candidates = [[[CLS_ID, 20 + len(text), SEP_ID] for text in group] for group in texts]
    return TrainingBatch(
        score_batch(queries, candidates),
        [f"query {number}" for number in range(len(texts))],
        flat,
        torch.tensor([label for group in labels for label in group], dtype=torch.int64),
        {"one": torch.arange(len(flat), dtype=torch.float32)},
        len(texts),
        [set(group) for group in answers],
    )


@st.composite
def training_batches(draw: st.DrawFn) -> TrainingBatch:
    """Batches of up to four queries with up to four candidates from five texts; a query may be unjudged."""
    texts = draw(st.lists(st.lists(st.sampled_from(WORDS[:5]), min_size=1, max_size=4), min_size=1, max_size=4))
    labels = [
        draw(st.lists(st.integers(0, 2), min_size=len(group), max_size=len(group)))
        if draw(st.booleans())
        else [UNKNOWN] * len(group)
        for group in texts
    ]
    answers = [draw(st.lists(st.sampled_from(WORDS[:5]), max_size=2)) for _ in texts]
    return training_batch(texts, labels, answers)


@settings(max_examples=40)
@given(training_batches())
def test_a_row_holds_its_query_s_candidates(batch: TrainingBatch) -> None:
    """The scores, labels and teachers' scores in a row are those of its query's candidates, in order."""
    scores = torch.arange(len(batch.texts), dtype=torch.float32) + 100
    scored = batch.scored(scores)

    for query, own in batch.batch.groups():
        mask = scored.mask[query]
        assert mask.tolist() == [place < own.stop - own.start for place in range(len(mask))]
        for row, values in ((scored.scores, scores), (scored.labels, batch.labels)):
            assert row[query][mask].tolist() == values[own].tolist()
        assert scored.teachers["one"][query][mask].tolist() == batch.teachers["one"][own].tolist()


@settings(max_examples=40)
@given(training_batches())
def test_a_query_may_be_compared_with_all_candidates(batch: TrainingBatch) -> None:
    """Candidates of other queries are irrelevant, unless they equal an own candidate or an answer that was not drawn.
    All labels of an unjudged query are unknown.
    """
    count, width = len(batch.batch.queries), len(batch.texts)
    owner = batch.batch.candidate_query.tolist()
    expected = []
    for query in range(count):
        own = [place for place in range(width) if owner[place] == query]
        row = []
        for place in range(width):
            if all(batch.labels[each] == UNKNOWN for each in own):
                row.append(UNKNOWN)
            elif place in own:
                row.append(int(batch.labels[place]))
            elif batch.texts[place] in {*(batch.texts[each] for each in own), *batch.answers[query]}:
                row.append(UNKNOWN)
            else:
                row.append(0)
        expected.append(row)
    scores = torch.arange(count * width, dtype=torch.float32)

    scored = batch.everyone_scored(scores)

    assert scored.labels.tolist() == expected
    assert scored.scores.tolist() == [list(range(width * query, width * (query + 1))) for query in range(count)]
    assert scored.mask.all()
    assert scored.teachers == {}


def test_groups_that_cannot_be_read_are_told(toy: dict[str, Path], tmp_path: Path) -> None:
    collection = str(toy["collection"])
    for group, error, message in [
        (
            Group(collection, "q", ["d0", "d99"], None, {}),
            BadGroups,
            "toy lacks 1 candidates that groups name, such as d99",
        ),
        (Group(str(tmp_path / "none"), "q", ["d0"], None, {}), BadCollection, "none is no folder"),
    ]:
        write_groups(tmp_path / "bad.jsonl", [group])
        with pytest.raises(error, match=message):
            reader({"groups": tmp_path / "bad.jsonl"})
    write_groups(tmp_path / "empty.jsonl", [])
    with pytest.raises(BadGroups, match=r"no groups in .*empty\.jsonl"):
        reader({"groups": tmp_path / "empty.jsonl"})
    with pytest.raises(BadGroups, match=r"none\.jsonl: no such file"):
        reader({"groups": tmp_path / "none.jsonl"})


def test_losses_are_checked_without_reading_the_groups_again(toy: dict[str, Path], tmp_path: Path) -> None:
    """Files of groups may be large, so the reader notes what `check` needs while it looks for the candidates' texts."""
    groups = Path(shutil.copy(toy["groups"], tmp_path))
    read = reader({"groups": groups})
    groups.unlink()

    read.check([LossRecipe("contrastive", teacher={"good": 1.0})], ["good"])
    with pytest.raises(BadGroups, match="has no scores of noisy"):
        read.check([LossRecipe("ranknet", teacher={"noisy": 1.0})], [])

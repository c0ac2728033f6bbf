"""Lexical evidence, against BM25 written out word by word."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import random_ids, score_batch, some_scores, tiny_cross_encoder
from support.precomputing import with_words
from support.tokenizer import SEP_ID, TOKENIZER_FILE, vocab_size

from bandrank.models import checkpoint
from bandrank.models.architectures import CrossEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.lexical import Lexical, LexicalConfig
from bandrank.models.loading import load_model
from bandrank.models.prepared import prepare

CONFIG = LexicalConfig(average_tokens=7.0, k1=1.2, b=0.6)


def lexical(seed: int = 0) -> Lexical:
    """Returns evidence with random weights of words, a tenth of which are zero, like those of special tokens."""
    made = Lexical(CONFIG, vocab_size())
    chance = torch.Generator().manual_seed(seed)
    made.idf.copy_((9 * torch.rand(vocab_size(), generator=chance) - 1).clamp(min=0))
    made.idf[SEP_ID] = 0
    return made


def written_out(idf: list[float], query: list[int], candidate: list[int]) -> tuple[float, float]:
    """Returns BM25 as a share of its maximum, and the share of the query's rarity that the candidate has."""
    pieces = [piece for piece in set(query) if idf[piece]]
    bm25 = there = 0.0
    for piece in pieces:
        count = candidate.count(piece)
        length = 1 - CONFIG.b + CONFIG.b * len(candidate) / CONFIG.average_tokens
        bm25 += idf[piece] * count / (count + CONFIG.k1 * length)
        there += idf[piece] * (count > 0)
    most = sum(idf[piece] for piece in pieces)
    return (bm25 / most, there / most) if most else (0.0, 0.0)


def within_graph(module: Lexical, batch: ScoreBatch) -> torch.Tensor:
    """Returns what a graph computes from the words of one query's candidates, with a gate that shows all evidence."""
    words = batch.candidates.words
    assert words is not None
    module.gate.data.copy_(torch.arange(9.0).view(3, 3))
    host = *module.ask(batch.queries.values.numpy(), 32), words.pieces.view(np.int16), words.weights
    return module.weigh_words(*map(torch.from_numpy, host))


def test_evidence_is_bm25_written_out() -> None:
    """Queries are short and long and repeat pieces; the features of a query lie between about 0 and 1."""
    rng, module = random.Random(1), lexical()
    idf = module.idf.tolist()
    queries = [[*random_ids(rng, n)[:-1], SEP_ID] for n in (1, 4, 60)]
    candidates = [[random_ids(rng, n) for n in group] for group in ([0, 1, 30], [], [5, 200])]
    features, evidence = module.evidence(score_batch(queries, candidates))

    expected = [
        written_out(idf, query, text) for query, group in zip(queries, candidates, strict=True) for text in group
    ]
    torch.testing.assert_close(torch.from_numpy(evidence[:, :2]), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert (evidence[:, 2] == 1).all()
    assert (features[:, 0] == 1).all()
    known = len({piece for piece in queries[2] if idf[piece]})
    assert features[2, 1] == pytest.approx(math.log(known) / 3)
    assert 0 < features[2, 2] < 1.2


def test_the_pooled_form_weighs_pieces_by_their_rarity_among_the_candidates_too() -> None:
    """The change is that of evidence written out with such weights, times the gate, whether words were kept or not."""
    rng, module = random.Random(5), lexical()
    module.gate.data.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
    query = [*random_ids(rng, 12)[:-1], SEP_ID]
    texts = [[*query[:3], *random_ids(rng, n)] for n in (0, 9, 40)] + [[], random_ids(rng, 50)]
    batch = score_batch([query], [texts])
    having = [sum(piece in text for text in texts) for piece in range(len(module.idf))]
    idf = [
        idf * math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
        for idf, n in zip(module.idf.tolist(), having, strict=True)
    ]
    [features], plain = module.evidence(batch)
    pooled = np.array([[*written_out(idf, query, text), 1] for text in texts])
    expected = ((pooled - plain) * (features @ module.gate.detach().numpy())).sum(1)

    change = module.pooled_change(np.array(query), batch.candidates)
    kept = module.pooled_change(np.array(query), replace(batch.candidates, words=module.words(batch.candidates)))

    np.testing.assert_allclose(change, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept, change, rtol=0, atol=2e-2)
    assert abs(change[:3]).min() > 1e-3
    assert module.pooled_change(np.array([SEP_ID]), batch.candidates).tolist() == [0] * 5


def test_other_weights_of_words_are_seen() -> None:
    """What is kept in host memory goes with the weights that it was copied from."""
    module, other = lexical(), lexical(1)
    batch = score_batch([[40, 50]], [[[40, 60], [50]]])
    before = module.evidence(batch)[1].tolist()

    module.idf = other.idf

    assert before != module.evidence(batch)[1].tolist() == other.evidence(batch)[1].tolist()


def test_words_that_were_kept_tell_the_same() -> None:
    """With all words kept, the evidence is equal up to the precision of their weights; with few, the most common pieces
    of a candidate are missing.
    """
    rng, module = random.Random(2), lexical()
    queries = [[*random_ids(rng, n)[:-1], SEP_ID] for n in (2, 30)]
    batch = score_batch(queries, [[random_ids(rng, n) for n in (0, 1, 30)], [random_ids(rng, n) for n in (5, 120)]])
    features, evidence = module.evidence(batch)

    def with_kept(most: int) -> ScoreBatch:
        module.config = replace(CONFIG, most_words=most)
        return replace(batch, candidates=replace(batch.candidates, words=module.words(batch.candidates)))

    part = with_kept(128).of_query(1, slice(3, 5))
    torch.testing.assert_close(within_graph(module, part), module(part), rtol=1e-5, atol=1e-6)
    kept_features, kept = module.evidence(with_kept(128))
    assert (kept_features == features).all()
    torch.testing.assert_close(torch.from_numpy(kept[:, 0]), torch.from_numpy(evidence[:, 0]), rtol=0, atol=2e-3)
    torch.testing.assert_close(torch.from_numpy(kept[:, 1:]), torch.from_numpy(evidence[:, 1:]), rtol=1e-5, atol=1e-6)

    fewer = with_kept(3)
    assert fewer.candidates.words is not None
    idf = module.idf.numpy()
    for index, pieces in enumerate(fewer.candidates.words.pieces):
        known = sorted({piece for piece in batch.candidates[index].tolist() if idf[piece]}, key=lambda each: -idf[each])
        assert [piece for piece in pieces.tolist() if piece] == known[:3]
    assert (module.evidence(fewer)[1] <= kept + 1e-6).all()


def test_evidence_of_kept_words_is_that_of_a_text_alone() -> None:
    """To the last bit, whatever other texts are in the batch."""
    rng, module = random.Random(3), lexical()
    batch = score_batch([random_ids(rng, 20)], [[random_ids(rng, n) for n in (40, 0, 3, 90)]])
    batch = replace(batch, candidates=replace(batch.candidates, words=module.words(batch.candidates)))
    _, together = module.evidence(batch)

    for index in range(4):
        assert (module.evidence(batch.of_query(0, slice(index, index + 1)))[1] == together[index]).all()


def test_pieces_of_large_vocabularies() -> None:
    """Two bytes stand for pieces beyond the 65,536th too; another piece is rarely taken for one of them."""
    module = Lexical(CONFIG, 250_000)
    module.idf.fill_(1.0)[0] = 0
    texts = score_batch([[70_000, 105_537]], [[[70_000, 5], [105_537, 70_001, 65_536]]])
    kept = replace(texts, candidates=replace(texts.candidates, words=module.words(texts.candidates)))

    assert module.evidence(kept)[1][:, 1].tolist() == module.evidence(texts)[1][:, 1].tolist() == [0.5, 0.5]
    assert torch.equal(within_graph(module, kept), module(kept))


def test_no_evidence_where_nothing_is_known() -> None:
    """A query of special tokens, a candidate without tokens and a batch without candidates are allowed."""
    module = lexical()
    features, evidence = module.evidence(score_batch([[SEP_ID], [SEP_ID, 40]], [[[40, 41]], [[]]]))

    assert features[0].tolist() == [1, 0, 0]
    assert evidence.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert module(score_batch([[40]], [[]])).shape == (0,)


def test_what_is_added_to_a_score() -> None:
    """The features of the query times the gate times the evidence are added; a gate of zeros adds nothing."""
    plain = tiny_cross_encoder(max_tokens=64)
    joined = CrossEncoder(replace(plain.config, lexical=CONFIG)).eval()
    joined.load_state_dict(
        plain.state_dict() | {f"lexical.{name}": value for name, value in lexical().state_dict().items()}
    )
    assert some_scores(joined) == some_scores(plain)

    with torch.no_grad():
        joined.lexical.gate.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
    rng = random.Random(2)
    batch = score_batch([random_ids(rng, 3), random_ids(rng, 9)], [[random_ids(rng, 90)], [random_ids(rng, 4)] * 2])
    features, evidence = map(torch.from_numpy, joined.lexical.evidence(batch))
    expected = ((features[[0, 1, 1]] @ joined.lexical.gate) * evidence).sum(1)
    torch.testing.assert_close(joined(batch) - plain(batch), expected, rtol=1e-4, atol=1e-5)


def test_lexical_evidence_is_saved_and_stays_in_float32(tmp_path: Path) -> None:
    """A compact checkpoint stores frequencies in half the size; in service they are float32 beside bfloat16 weights."""
    scorer = with_words(tiny_cross_encoder(lexical=CONFIG))
    checkpoint.save(scorer, tmp_path / "small", tokenizer=TOKENIZER_FILE, int8=("embeddings.word",))
    loaded = load_model(str(tmp_path / "small")).scorer
    assert loaded.config == scorer.config
    torch.testing.assert_close(loaded.lexical.idf, scorer.lexical.idf, rtol=1e-3, atol=1e-3)

    served = prepare(loaded, device=torch.device("cpu"), dtype=torch.bfloat16).scorer
    assert {served.lexical.idf.dtype, served.lexical.gate.dtype} == {torch.float32}
    assert served.encoder.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "wrong", [{"average_tokens": 0.0}, {"average_tokens": 9.0, "k1": -1.0}, {"average_tokens": 9.0, "b": 2.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """k1 and b may be at their bounds; most_words has a message of its own."""
    LexicalConfig(9.0, k1=0.0, b=0.0, most_words=1)
    LexicalConfig(9.0, b=1.0)
    with pytest.raises(ValueError, match="average_tokens must be above 0, k1 at least 0, and b within"):
        LexicalConfig(**wrong)
    with pytest.raises(ValueError, match="most_words must be at least 1, got 0"):
        LexicalConfig(9.0, most_words=0)

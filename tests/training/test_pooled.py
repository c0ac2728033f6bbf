"""`evaluate --pooled` ranks by the pooled form of lexical evidence."""

import random
from pathlib import Path

import pytest
from support.collections import write_collection, write_lines, write_run_lines
from support.models import random_text
from support.precomputing import tiny_mix_encoder, with_words
from support.training import saved

from bandrank.models.layers.lexical import LexicalConfig
from bandrank_training.__main__ import main
from bandrank_training.collection import read_run
from bandrank_training.scoring import Question, score_offline
from bandrank_training.start import load_start

DOCUMENTS = {f"d{number}": random_text(random.Random(number), 5 + number) for number in range(6)}
QUERIES = {"q1": f"{DOCUMENTS['d1']} {DOCUMENTS['d3']}", "q2": random_text(random.Random(8), 3)}


def test_it_is_a_system_of_its_own(tmp_path: Path) -> None:
    """Its scores are those of an offline scorer in that form; the plain results stay."""
    write_collection(
        tmp_path / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels={name: {"d1": 1} for name in QUERIES}
    )
    write_lines(tmp_path / "lists.tsv", "query-id\tcandidate-ids", "q1\td5 d1 d3", "q2\td0 d4")
    model = saved(tmp_path / "mix", with_words(tiny_mix_encoder(lexical=LexicalConfig(20.0, most_words=24))))
    asked = ["evaluate", model, str(tmp_path / "tiny"), "--candidates", str(tmp_path / "lists.tsv"), "--device", "cpu"]
    asked += ["--out", str(tmp_path / "out")]
    assert [main(asked), main([*asked, "--pooled"])] == [0, 0]

    plain, pooled = (read_run(tmp_path / "out" / f"tiny.test.candidates.{tag}.trec") for tag in ("mix", "mix-pooled"))
    questions = [Question(QUERIES[name], [DOCUMENTS[each] for each in plain[name]]) for name in plain]
    scores = score_offline(load_start(model), pooled=True).score(questions)
    for name, expected in zip(plain, scores, strict=True):
        assert [pooled[name][each] for each in plain[name]] == pytest.approx(expected, abs=1e-4)
    assert plain["q1"] != pooled["q1"]


def test_what_has_no_pooled_form_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an order nor a scorer without lexical evidence has one."""
    write_collection(
        tmp_path / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels={name: {"d1": 1} for name in QUERIES}
    )
    write_run_lines(tmp_path / "bm25.trec", {"q1": {"d1": 1.0}})
    for model in ("run", saved(tmp_path / "mix", tiny_mix_encoder())):
        asked = ["evaluate", model, str(tmp_path / "tiny"), "--run", str(tmp_path / "bm25.trec"), "--pooled"]
        assert main([*asked, "--out", str(tmp_path / "out")]) != 0
        assert f"{model} has no lexical evidence" in capsys.readouterr().err

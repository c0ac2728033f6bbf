"""Bi-encoders of every family against `sentence-transformers`, which writes their folders and reads them."""

import random
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from support.bert_likes import KNOWN, save_fast_tokenizer, tiny
from support.models import HIDDEN_SIZE, as_served, edit_json, random_text, randomise, score_batch, write_json
from support.refusals import assert_refused
from torch import nn

from bandrank.models import checkpoint
from bandrank.models.architectures import BiEncoder
from bandrank.models.checkpoint import read_json
from bandrank.models.hf.prompts import wordings
from bandrank.models.known import trained_for_dot
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.ragged import Ragged

CLOSE = 1e-5  # of cosines; dot products are compared by their size
ENCODER = "DistilBERT"  # for tests in which any encoder would do
POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["max", "cls"]]
# sentence-transformers/LaBSE has one module, of 768 outputs with a tanh.
DENSE: dict[str, list[dict[str, Any]]] = {
    "LaBSE": [{"out_features": HIDDEN_SIZE, "activation_function": nn.Tanh()}],
    "two": [
        {"out_features": 24, "activation_function": nn.GELU(), "bias": False},
        {"out_features": 8, "activation_function": nn.Identity()},
    ],
    "residual": [
        {"out_features": HIDDEN_SIZE, "use_residual": True},
        {"out_features": 8, "use_residual": True, "bias": False},
    ],
}
rng = random.Random(0)
QUERIES = ["who is the man", "", "Thé man's time? ☂"]
TEXTS = ["the man", "", "she was over there; who?", random_text(rng, 40), "ñandú ☂ of the man", random_text(rng, 600)]


def saved(folder: Path, name: str, *, pooling: Any = "mean", dense: str = "", cosine: bool = True) -> Path:
    """Saves a random bi-encoder on the encoder of a known model as the library writes it, and returns the folder."""
    known, start = KNOWN[name], folder / "start"
    tiny(name).base_model.save_pretrained(start)
    tokenizer = known.tokenizer()
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    save_fast_tokenizer(start, tokenizer)
    size, layers = HIDDEN_SIZE * (len(pooling) if isinstance(pooling, list) else 1), []
    for options in DENSE.get(dense, []):
        layers.append(Dense(in_features=size, **options))
        randomise(layers[-1], seed=1)
        size = options["out_features"]
    transformer = Transformer(str(start), max_seq_length=known.positions)
    modules = [transformer, Pooling(HIDDEN_SIZE, pooling_mode=pooling), *layers, *([Normalize()] if cosine else [])]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine" if cosine else "dot")
    model.save(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


def expected(folder: Path, **more: Any) -> torch.Tensor:
    """Returns the library's similarities, (queries, texts). more: arguments of its model."""
    theirs = SentenceTransformer(str(folder), device="cpu", **more)
    with torch.inference_mode():
        queries = theirs.encode_query(QUERIES, convert_to_tensor=True, batch_size=1)
        return theirs.similarity(queries, theirs.encode_document(TEXTS, convert_to_tensor=True, batch_size=1))


def found(model: LoadedModel) -> torch.Tensor:
    """Returns our similarities of all queries and texts in one batch."""
    encoder = model.texts()
    queries = [encoder.query(query)[0].tolist() for query in QUERIES]
    texts = encoder.candidates(encoder.pieces(TEXTS), query_tokens=0)[0].tolist()
    with torch.inference_mode():
        scores: torch.Tensor = model.scorer(score_batch(queries, [texts] * len(queries)))
    return scores.view(len(QUERIES), len(TEXTS))


def assert_alike(folder: Path, model: LoadedModel | None = None, **more: Any) -> LoadedModel:
    """Checks that our similarities are the library's, also as served and from our own checkpoint; returns the model.

    model: if it is loaded otherwise than by the folder alone.  more: arguments of the library's model.
    """
    model, similarities = model or load_model(str(folder)), expected(folder, **more)
    assert isinstance(model.scorer, BiEncoder)
    close = CLOSE * max(1.0, float(similarities.abs().max()))
    torch.testing.assert_close(found(model), similarities, rtol=0, atol=close)
    assert similarities.std() > 100 * close
    again = folder.parent / "again"
    checkpoint.save(model.scorer, again, tokenizer=model.folder / "tokenizer.json")
    torch.testing.assert_close(found(load_model(str(again))), similarities, rtol=0, atol=close)
    as_served(model.scorer)
    torch.testing.assert_close(found(model), similarities, rtol=0, atol=close)
    return model


@pytest.mark.parametrize("name", KNOWN)
def test_every_family(name: str, tmp_path: Path) -> None:
    """Some texts are empty, some longer than the positions; the tokenizer's own truncation and padding are ignored."""
    assert_alike(saved(tmp_path, name))


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling(pooling: str | list[str], cosine: bool, tmp_path: Path) -> None:
    assert_alike(saved(tmp_path, ENCODER, pooling=pooling, cosine=cosine))


def test_positions_that_yarn_scales(tmp_path: Path) -> None:
    folder = saved(tmp_path, "GTE without token types")
    plain, length = found(load_model(str(folder))), "original_max_position_embeddings"
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, length: 64}
    edit_json(folder / "config.json", {"rope_parameters": rope})

    assert (found(assert_alike(folder)) - plain).abs().max() > 100 * CLOSE


def test_poolings_that_switches_join(tmp_path: Path) -> None:
    """In the order of the switches; a dense module reads them all."""
    folder = saved(tmp_path, ENCODER, pooling=["cls", "mean"], dense="two")
    switches = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    edit_json(folder / "1_Pooling" / "config.json", switches, remove=("pooling_mode",))
    model = assert_alike(folder)

    assert model.scorer.facts(str, str)["pooling"].startswith("cls and mean, compared by")


@pytest.mark.parametrize("path", ["0_Transformer", "0_Transformer/"])
def test_a_transformer_in_a_folder_of_its_own(path: str, tmp_path: Path) -> None:
    """As version 0 of the library saved it, and version 1 beside a config.json with nothing but a version."""
    folder = saved(tmp_path, ENCODER)
    modules = read_json(folder / "modules.json")
    (folder / "0_Transformer").mkdir()
    for each in [each for each in folder.iterdir() if each.is_file()]:
        if each.name not in ("modules.json", "config_sentence_transformers.json"):
            each.rename(folder / "0_Transformer" / each.name)
    write_json(folder / "modules.json", [modules[0] | {"path": path}, *modules[1:]])
    write_json(folder / "config.json", {"__version__": "1.0.0"})
    assert_alike(folder)
    write_json(folder / "modules.json", [modules[0] | {"path": path}])
    assert_refused(folder, "only a bi-encoder may have a folder for it")


def silent(folder: Path, *, named: bool) -> Path:
    """Saves a folder that does not say how vectors are compared. named: whether it has the key, without a value."""
    saved(folder, "MPNet", pooling="cls", cosine=False)
    library = folder / "saved" / "config_sentence_transformers.json"
    edit_json(library, {"similarity_fn_name": None}, remove=() if named else ("similarity_fn_name",))
    return folder / "saved"


@pytest.mark.parametrize("named", [True, False])
def test_vectors_are_compared_by_the_cosine_by_default(named: bool, tmp_path: Path) -> None:
    """The library's own `similarity` does the same; no module normalises the vectors."""
    model = assert_alike(silent(tmp_path, named=named))

    assert isinstance(model.scorer, BiEncoder)
    assert (model.scorer.config.similarity, model.scorer.why_similarity) == (
        "cosine",
        "the default, as its files do not say",
    )


@pytest.mark.parametrize("known", ["msmarco-distilbert-base-tas-b", "multi-qa-mpnet-base-dot-v1"])
def test_known_models_are_compared_as_their_cards_say(known: str, tmp_path: Path) -> None:
    """Their files do not name the dot product, but the name of the folder, or of a copy on the hub, tells."""
    folder = silent(tmp_path, named=False).rename(tmp_path / known)
    model = assert_alike(folder, similarity_fn_name="dot")

    assert isinstance(model.scorer, BiEncoder)
    assert model.scorer.why_similarity == "known of this model"
    assert trained_for_dot(f"somebody/{known}")
    assert trained_for_dot(f"{folder}/")
    assert not trained_for_dot(f"{known}-tuned")


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_similarity_that_is_asked_for_goes_before_what_the_folder_says(
    similarity: Literal["cosine", "dot"], tmp_path: Path
) -> None:
    """For vectors that a module normalises, both similarities are the same."""
    folder = saved(tmp_path / "open", ENCODER, cosine=False)
    edit_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    assert_alike(folder, load_model(str(folder), similarity=similarity), similarity_fn_name=similarity)

    normalised = saved(tmp_path / "normalised", ENCODER)
    assert_alike(normalised, load_model(str(normalised), similarity=similarity), similarity_fn_name=similarity)


@pytest.mark.parametrize("dense", DENSE)
def test_dense_modules(dense: str, tmp_path: Path) -> None:
    model = assert_alike(saved(tmp_path, "cross-encoder/ms-marco-electra-base", pooling="cls", dense=dense))

    assert model.scorer.representation_size == DENSE[dense][-1]["out_features"]
    assert {"dense.0.linear.weight"} <= model.scorer.candidate_side().weights.keys()


@pytest.mark.parametrize(
    ("dense", "cosine", "most", "size"),
    [("", True, 20, 20), ("", False, 20, 20), ("two", True, 5, 5), ("two", True, 9, 8)],
)
def test_vectors_are_cut(dense: str, cosine: bool, most: int, size: int, tmp_path: Path) -> None:
    """They are cut behind all modules, so the cosine is that of the cut vectors."""
    folder = saved(tmp_path, ENCODER, dense=dense, cosine=cosine)
    edit_json(folder / "config_sentence_transformers.json", {"truncate_dim": most})
    model = assert_alike(folder)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[0], normalize_embeddings=cosine)

    with torch.inference_mode():
        tokens = Ragged.from_token_ids([model.tokenizer.encode(TEXTS[0]).ids])
        (ours,) = model.scorer.encode_candidates(tokens).values
    torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=CLOSE, atol=CLOSE)
    assert ours.shape == (model.scorer.representation_size,) == (size,)
    assert ("mean, cut to" in model.scorer.facts(str, str)["pooling"]) == (most == size)


@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "query: ", "document": "passage: "},
        {"query": "", "document": "passage: "},
        {"query": "Represent this sentence for searching relevant passages: ", "document": None},
    ],
)
def test_prompts(prompts: dict[str, str | None], tmp_path: Path) -> None:
    folder = saved(tmp_path, "BERT with XLM-RoBERTa's tokens")
    plain = found(load_model(str(folder)))
    edit_json(folder / "config_sentence_transformers.json", {"prompts": prompts})

    worded = found(assert_alike(folder))

    assert (worded - plain).abs().max() > 100 * CLOSE


@pytest.mark.parametrize(
    ("library", "query", "document"),
    [
        ({"prompts": {"query": "query: ", "passage": "passage: "}}, "query: ", "passage: "),
        ({"prompts": {"corpus": "passage: ", "document": ""}}, "", "passage: "),
        ({"prompts": {"s2s_query": "sts: ", "s2p_query": "query: "}, "default_prompt_name": None}, "query: ", ""),
        ({"prompts": {"text": "sts: "}, "default_prompt_name": "text"}, "sts: ", "sts: "),
        ({"prompts": {"text": "sts: "}, "default_prompt_name": None}, "", ""),
        ({"prompts": {"query": "query: "}, "default_prompt_name": "query"}, "query: ", ""),
        ({"prompts": None}, "", ""),
    ],
)
def test_prompts_by_other_names(library: dict[str, Any], query: str, document: str) -> None:
    """The library would leave out these prompts, which the folder's author wrote for one side or for all texts."""
    of_query, of_document = wordings(library)

    assert (of_query.around(), of_document.around()) == ((query, ""), (document, ""))


def test_lower_case(tmp_path: Path) -> None:
    """Lower case is asked for in sentence_bert_config.json, while the tokenizer leaves case alone."""
    folder = saved(tmp_path, "BAAI/bge-reranker-base")
    cased = load_model(str(folder)).tokenizer
    edit_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    model = load_model(str(folder))

    assert model.tokenizer.encode("The MAN").ids == cased.encode("the man").ids != cased.encode("The MAN").ids
    torch.testing.assert_close(found(model), expected(folder), rtol=0, atol=CLOSE)

"""jina-embeddings-v3: adapters for queries and passages in the weights of two encoders, against `transformers`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import save, tiny
from support.jina_3 import NAME, QUERY, TEXTS, as_jina_saves_it, states
from support.models import as_served, change_weights, write_bi_encoder, write_json, write_modules
from support.refusals import assert_refused
from support.text_scores import ids_of, scores_of_texts
from torch import Tensor
from torch.nn.functional import normalize
from transformers import JinaEmbeddingsV3Model, PreTrainedModel

from bandrank.models import checkpoint, hf
from bandrank.models.architectures import BiEncoder
from bandrank.models.loading import load_model

CLOSE = 1e-5  # float32 in another order of summation
TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
PROMPTS = {
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "separation": "",
}
LORA = {"lora_adaptations": TASKS, "lora_alpha": 3, "lora_rank": 2, "load_trained_adapters": True}
MATRICES = ("embeddings.weight", "Wqkv.weight", "out_proj.weight", "fc1.weight", "fc2.weight")


def factors(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Names and factors, `lora_A` and `lora_B` of all tasks, of the adapters of each matrix in the encoder."""
    generator = torch.Generator().manual_seed(3)
    for name in sorted(name for name in weights if name.startswith("roberta.") and name.endswith(MATRICES)):
        rows, columns = weights[name].shape
        of_embeddings = "embeddings" in name  # whose rows are inputs
        shapes = [(5, rows, 2), (5, 2, columns)] if of_embeddings else [(5, 2, columns), (5, rows, 2)]
        first, second = (0.3 * torch.randn(shape, generator=generator) for shape in shapes)
        yield name, first, second


def adapted(weights: dict[str, Tensor], task: int) -> dict[str, Tensor]:
    """The weights as a task's matrices are while it runs: with the product of its factors, scaled, on top."""
    changed = {}
    for name, first, second in factors(weights):
        terms = "or,ri->oi" if "embeddings" in name else "ri,or->oi"
        changed[name] = weights[name] + 1.5 * torch.einsum(terms, first[task], second[task])
    return weights | changed


def with_adapters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of parametrised matrices."""
    for name, first, second in factors(weights):
        within = name.replace(".weight", ".parametrizations.weight")
        more = {f"{within}.original": weights.pop(name), f"{within}.0.lora_A": first, f"{within}.0.lora_B": second}
        weights = weights | more
    return weights


def folder_of(folder: Path, **settings: Any) -> Path:
    """Writes the files of jina-embeddings-v3. settings: in config.json, other than its own."""
    as_jina_saves_it(folder, **LORA | settings)
    change_weights(folder, with_adapters)
    write_bi_encoder(folder, {"pooling_mode_mean_tokens": True}, prompts=PROMPTS, default_prompt_name=None)
    text = (folder / "modules.json").read_text(encoding="utf-8")
    of_jina = text.replace("sentence_transformers.models.Transformer", "custom_st.Transformer")
    (folder / "modules.json").write_text(of_jina, encoding="utf-8")
    return folder


def library_of(folder: Path, task: int) -> PreTrainedModel:
    """The library's encoder with a task's matrices."""
    save(folder, NAME)
    change_weights(folder, lambda weights: adapted(weights, task))
    return JinaEmbeddingsV3Model.from_pretrained(folder, add_pooling_layer=False).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@torch.inference_mode()
def test_queries_and_candidates_have_adapters_of_their_own(dtype: torch.dtype, tmp_path: Path) -> None:
    """Scores are cosines of means over all tokens, and each side has the prompt named like its adapter."""
    model = load_model(str(folder_of(tmp_path / "adapters")))
    assert isinstance(model.scorer, BiEncoder)
    query, texts = ids_of(model, QUERY, TEXTS)
    (of_query,) = states(library_of(tmp_path / "query", 0), [query])
    means = torch.stack([rows.mean(0) for rows in states(library_of(tmp_path / "passage", 1), texts)])
    expected = normalize(means, dim=-1) @ normalize(of_query.mean(0), dim=-1)
    as_served(model.scorer, dtype)
    close = CLOSE if dtype is torch.float32 else 0.3 * float(expected.std())

    assert query == model.tokenizer.encode(PROMPTS["retrieval.query"] + QUERY).ids
    assert texts == [model.tokenizer.encode(PROMPTS["retrieval.passage"] + text).ids for text in TEXTS]
    assert expected.std() > 1000 * CLOSE
    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx(expected.tolist(), abs=close)


def test_it_can_be_saved(tmp_path: Path) -> None:
    """The encoders share no tensor, which could not be saved, and would be trained twice."""
    folder = folder_of(tmp_path / "adapters")
    scorer = hf.load(folder)
    checkpoint.save(scorer, tmp_path / "saved", tokenizer=folder / "tokenizer.json")

    assert scores_of_texts(load_model(str(tmp_path / "saved")), QUERY, TEXTS) == pytest.approx(
        scores_of_texts(load_model(str(folder)), QUERY, TEXTS), abs=CLOSE
    )
    assert len({each.data_ptr() for each in scorer.parameters()}) == len([*scorer.parameters()])


def test_check_says_that_there_are_two_encoders(tmp_path: Path) -> None:
    facts = hf.load(folder_of(tmp_path)).facts(str, str)

    assert facts["encoders"] == "two, for queries and for candidates, each with all weights"
    assert facts["parameters"] == f"{2 * sum(each.numel() for each in tiny(NAME).roberta.parameters()):,}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_adaptations": TASKS[1:]}, "adapters for .*separation.* are not supported without retrieval.query and "),
        ({"lora_adaptations": None}, r"config.json names adapters for \[\], the weights have some"),
    ],
)
def test_adapters_that_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert_refused(folder_of(tmp_path, **settings), message)


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("matrix", ["word_embeddings", "fc1"])
def test_an_adapter_of_another_shape_is_refused(matrix: str, axis: int, part: str, tmp_path: Path) -> None:
    def cut(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        name = next(name for name in weights if matrix in name and name.endswith(part))
        return weights | {name: weights[name].narrow(axis, 0, 1).contiguous()}

    change_weights(folder_of(tmp_path), cut)
    assert_refused(tmp_path, rf"the adapters of .*{matrix}.weight have the shapes \(")


def test_adapters_without_the_modules_of_a_bi_encoder_are_refused(tmp_path: Path) -> None:
    """A cross-encoder with these weights would be scored without them."""
    (folder_of(tmp_path) / "modules.json").unlink()
    assert_refused(tmp_path, r"adapters for .*are not supported but in a bi-encoder")


@pytest.mark.parametrize("of_library", [True, False])
def test_adapters_in_folders_are_refused(of_library: bool, tmp_path: Path) -> None:
    """The weights of jinaai/jina-embeddings-v3-hf are those without an adapter, and its adapters lie in folders."""
    folder = folder_of(tmp_path)
    if of_library:
        save(folder, NAME)
        write_modules(folder, {"": "models.Transformer", "1_Pooling": "models.Pooling"})
    adapter = folder / ("retrieval_query" if of_library else "query")
    adapter.mkdir()
    write_json(adapter / "adapter_config.json", {"peft_type": "LORA"})
    assert_refused(folder, "adapters for tasks in folders of their own are not supported")

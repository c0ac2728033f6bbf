"""Static embeddings against `sentence-transformers`, in its folders and in Model2Vec's."""

from pathlib import Path

import pytest
import torch
from models.test_golden_modules import assert_alike
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from support.bert_likes import word_piece_tokenizer
from support.models import HIDDEN_SIZE, write_json, write_modules
from support.refusals import assert_refused
from torch import Tensor, nn

from bandrank.dtype_choice import choose_dtype
from bandrank.models.checkpoint import read_json
from bandrank.models.loading import load_model
from bandrank.models.scorer import LIGHT_ROWS
from bandrank.models.windowed import windowed

CPU = torch.device("cpu")


def drawn(*shape: int) -> Tensor:
    """Random numbers, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def save_static(folder: Path, *behind: nn.Module, truncated: int | None = None) -> Path:
    """Writes a random table as sentence-transformers does. behind: modules.  truncated: the tokenizer's limit."""
    tokenizer = word_piece_tokenizer()
    if truncated is not None:
        tokenizer.enable_truncation(truncated)
    table = StaticEmbedding(tokenizer, drawn(tokenizer.get_vocab_size(), HIDDEN_SIZE))
    prompts = {"query": "who is ", "document": ""}
    SentenceTransformer(modules=[table, *behind], device="cpu", prompts=prompts).save(str(folder))
    return folder


def save_model2vec(folder: Path, *, shared: bool = True, dtype: torch.dtype = torch.float32) -> Path:
    """Writes a random table as Model2Vec does, with what an export to ONNX puts beside it. shared: whether tokens share
    rows, and have weights.
    """
    size = word_piece_tokenizer().get_vocab_size()
    table = {"embeddings": (10 * drawn(size // 2 if shared else size, HIDDEN_SIZE)).to(dtype)}
    if shared:
        table |= {"mapping": torch.arange(size, dtype=torch.int32) // 2, "weights": drawn(size).double().abs()}
    folder.mkdir()
    save_file(table, folder / "model.safetensors")
    word_piece_tokenizer().save(str(folder / "tokenizer.json"))
    write_modules(folder, {".": "models.StaticEmbedding", "1_Normalize": "models.Normalize"})
    write_json(folder / "config.json", {"model_type": "model2vec", "hidden_dim": HIDDEN_SIZE, "normalize": True})
    other = {"do_lower_case": False, "model_max_length": 3, "additional_special_tokens": ["[new]"]}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"} | other)
    return folder


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
@pytest.mark.parametrize("behind", [(), (Dense(HIDDEN_SIZE, 8), Normalize())])
def test_what_sentence_transformers_saves(behind: tuple[nn.Module, ...], place: str, tmp_path: Path) -> None:
    """Earlier versions put the table into a folder of its own; there is no config.json, and special tokens count
    nowhere.
    """
    folder = save_static(tmp_path / "saved", *behind)
    if place:
        (folder / place).mkdir()
        for name in ("model.safetensors", "tokenizer.json"):
            (folder / name).rename(folder / place / name)
        modules = read_json(folder / "modules.json")
        write_json(folder / "modules.json", [modules[0] | {"path": place}, *modules[1:]])
    model = assert_alike(folder)

    assert model.scorer.row_cost == LIGHT_ROWS
    assert choose_dtype("int8", CPU, model) == choose_dtype("auto", CPU, model) == torch.float32
    with pytest.raises(ValueError, match="do not stand between two tokens"):
        windowed(model.scorer, 4)


@pytest.mark.parametrize("shared", [True, False])
def test_what_model2vec_saves(shared: bool, tmp_path: Path) -> None:
    """Its vocabulary may be quantised: tokens share rows, which are then weighted."""
    assert_alike(save_model2vec(tmp_path / "saved", shared=shared))


def test_vectors_of_bytes(tmp_path: Path) -> None:
    """Their scale changes no cosine; the library reads them only with weights."""
    folder = save_model2vec(tmp_path / "saved", dtype=torch.int8)
    assert_alike(folder)
    load_model(str(save_model2vec(tmp_path / "plain", shared=False, dtype=torch.int8)))


def test_the_tokenizer_may_cut_texts(tmp_path: Path) -> None:
    assert assert_alike(save_static(tmp_path / "saved", truncated=7)).scorer.config.max_tokens == 7


def test_other_folders_are_refused(tmp_path: Path) -> None:
    folder = save_model2vec(tmp_path / "saved")
    write_modules(folder, {"": "models.StaticEmbedding", "1_Pooling": "models.Pooling"})
    assert_refused(folder, r"only StaticEmbedding, Dense and Normalize")
    (folder / "modules.json").unlink()
    assert_refused(folder, r"modules \[\] are not supported, only StaticEmbedding")
    save_file({"other": torch.zeros(2)}, folder / "model.safetensors")
    assert_refused(folder, "no tensor 'embedding.weight'")

"""A folder of toy data and tiny models, for all training tests of a module."""

from pathlib import Path

import pytest
from support.models import save_bi_encoder, tiny_cross_encoder
from support.modernbert import tiny_sequence_cross_encoder
from support.precomputing import tiny_mix_encoder
from support.training import saved, write_toy

from bandrank.models.layers.patterns import sparse


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection, groups.jsonl, dev.jsonl.gz, and four tiny models to start from."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder)
    save_bi_encoder(folder / "bi_encoder", num_layers=3)
    for name, scorer in {
        "cross_encoder": tiny_cross_encoder(pattern=sparse(4)),
        "sequence_cross_encoder": tiny_sequence_cross_encoder(),
        "mix_encoder": tiny_mix_encoder(similarity="cosine"),
    }.items():
        saved(folder / name, scorer)
    return folder

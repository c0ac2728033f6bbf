"""Building blocks of encoders, each against its definition."""

from functools import partial

import pytest
import torch
from support.other_encoder import turned
from torch.nn.functional import gelu, layer_norm, silu

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import BlockOptions, PostNormBlock, PreNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.feed_forward import feed_forward, up_size
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.patterns import FULL, longformer, narrowed, sparse
from bandrank.models.layers.positions import Rotary
from bandrank_kernels.windowed_attention import PackedRows, plan_attention

CLOSE = 1e-5  # float32 in another order; numbers are of the order of 1
CONFIG = EncoderConfig(9, 8, 1, 2, 12, 4, num_token_types=0, layer_norm_eps=1e-5)


def test_rotary_positions_are_complex_products() -> None:
    """Each pair of numbers of queries and keys is turned by its frequency; values are not turned."""
    torch.manual_seed(0)
    qkv, positions = torch.randn(5, 3, 2, 8), torch.tensor([0, 1, 7, 3, 500])

    result = Rotary(base=100.0).turn(qkv, positions)

    for part in (0, 1):
        torch.testing.assert_close(result[:, part], turned(qkv[:, part], positions, 100.0), rtol=0, atol=1e-4)
    assert torch.equal(result[:, 2], qkv[:, 2])
    assert torch.equal(result[0], qkv[0])


def test_rotary_products_depend_on_distance_alone() -> None:
    """A query and a key that move by the same distance keep their product."""
    torch.manual_seed(0)
    qkv = torch.randn(1, 3, 2, 8).expand(4, 3, 2, 8)

    query, key, _ = Rotary().turn(qkv, torch.tensor([3, 10, 103, 110])).unbind(1)

    products = [(query[here] * key[there]).sum() for here, there in ((0, 1), (2, 3), (0, 3))]
    assert products[0] == pytest.approx(float(products[1]), abs=1e-4)
    assert abs(products[0] - products[2]) > 1e-2


def test_feed_forwards() -> None:
    """A feed-forward is GELU between two linear layers, or a product with a gate of GELU or SiLU."""
    torch.manual_seed(0)
    rows = torch.randn(5, 8)
    with torch.no_grad():
        tanh_gelu = partial(gelu, approximate="tanh")
        for activation, act in (("geglu", gelu), ("geglu_tanh", tanh_gelu), ("swiglu", silu)):
            assert up_size(12, activation) == 24
            up, down = Linear(8, 24), Linear(12, 8)
            gate, gated = rows @ up.weight[:12].T + up.bias[:12], rows @ up.weight[12:].T + up.bias[12:]
            expected = (act(gate) * gated) @ down.weight.T + down.bias
            torch.testing.assert_close(feed_forward(up, down, rows, activation), expected, rtol=0, atol=CLOSE)
        assert up_size(12, "gelu") == 12
        up = Linear(8, 12)
        expected = gelu(rows @ up.weight.T + up.bias) @ down.weight.T + down.bias
        torch.testing.assert_close(feed_forward(up, down, rows, "gelu"), expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("block_class", [PostNormBlock, PreNormBlock])
def test_norms_follow_residuals_or_precede_halves(block_class: type[PostNormBlock | PreNormBlock]) -> None:
    """Norms follow each residual, or precede each half of the block. Each row attends to itself alone here, so that
    attention gives its value.
    """
    torch.manual_seed(0)
    block = block_class(CONFIG, BlockOptions())
    rows = torch.randn(3, 8)
    for norm in (block.attention_norm, block.out_norm):
        torch.nn.init.normal_(norm.weight)
    alone = PackedRows(
        torch.arange(4).numpy(), torch.zeros(1, dtype=torch.int64).numpy(), torch.zeros(0).long().numpy()
    )
    plan = plan_attention(alone, sparse(None), device=rows.device, dtype=rows.dtype, head_dim=4)
    with torch.no_grad():

        def normed(x: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
            return layer_norm(x, (8,), norm.weight, norm.bias, 1e-5)

        def attended(x: torch.Tensor) -> torch.Tensor:
            return block.attention_out(block.qkv(x)[:, 16:])  # type: ignore[no-any-return]

        def fed(x: torch.Tensor) -> torch.Tensor:
            return block.down(gelu(block.up(x)))  # type: ignore[no-any-return]

        if block_class is PostNormBlock:
            middle = normed(rows + attended(rows), block.attention_norm)
            expected = normed(middle + fed(middle), block.out_norm)
        else:
            middle = rows + attended(normed(rows, block.attention_norm))
            expected = middle + fed(normed(middle, block.out_norm))

        result = block(rows, torch.zeros(3, dtype=torch.int64), plan)

    torch.testing.assert_close(result, expected, rtol=0, atol=CLOSE)


def test_embeddings_without_tables() -> None:
    """Encoders with rotary positions, or with none, only norm the word vectors."""
    embeddings = Embeddings(CONFIG, position_table=False)
    ids, zeros = torch.tensor([3, 1, 3]), torch.zeros(3, dtype=torch.int64)

    expected = layer_norm(embeddings.word.weight[ids], (8,))

    torch.testing.assert_close(embeddings(ids, torch.arange(3), zeros), expected, rtol=0, atol=CLOSE)
    assert set(embeddings.state_dict()) == {"word.weight", "norm.weight", "norm.bias"}


def test_patterns_are_narrowed() -> None:
    """The smaller of the two windows counts; everything else stays."""
    assert narrowed(FULL, None) is FULL
    assert narrowed(sparse(4), 64) == sparse(4)
    assert narrowed(sparse(4), 2) == sparse(2)
    assert narrowed(sparse(None), 64) == sparse(64)
    assert narrowed(FULL, 2) == longformer(2)

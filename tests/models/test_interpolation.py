"""Position tables stretched to longer texts, against the procedure of Schlatt et al. (2024) written in numpy."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import Ridge

from bandrank.models.layers.interpolation import interpolate_positions, trained_rows

Floats = npt.NDArray[np.float64]


def pairs(rows: Floats) -> tuple[Floats, Floats]:
    """Returns, for each row from the sixth on, the five rows before it end to end, and the row itself."""
    return np.stack([rows[i - 5 : i].reshape(-1) for i in range(5, len(rows))]), rows[5:]


def ridge_error(train: Floats, test: Floats) -> float:
    """Returns the test error of a ridge regression with the library that the paper's code uses."""
    model = Ridge().fit(*pairs(train))
    inputs, targets = pairs(test)
    return float(np.mean((model.predict(inputs) - targets) ** 2))


def cut_of(table: Floats) -> int:
    """Returns the cut at which the error has risen three times in a row, moving down by 5, or the last one tried."""
    errors: list[float] = []
    cut = len(table)
    for cut in reversed(range(6, len(table) - 6, 5)):
        errors.append(ridge_error(table[:cut], table[cut:]))
        if len(errors) > 3 and errors[-1] > errors[-2] > errors[-3] > errors[-4]:
            break
    return cut


def smooth_table(num_positions: int, hidden_size: int, noisy_from: int, seed: int) -> Floats:
    """Returns waves, as in a trained table; rows from `noisy_from` on are noise, as where training texts ended."""
    rng = np.random.default_rng(seed)
    waves = np.sin(
        np.arange(num_positions)[:, None] * rng.uniform(0.01, 0.3, hidden_size) + rng.uniform(0, 6, hidden_size)
    )
    noise = rng.normal(size=(num_positions, hidden_size))
    amount = np.where(np.arange(num_positions) < noisy_from, 0.05, 1.0)[:, None]
    return np.asarray(waves + amount * noise)


TABLES = [
    smooth_table(num_positions, hidden_size, noisy_from, seed)
    for seed, (num_positions, hidden_size, noisy_from) in enumerate(
        [(512, 8, 480), (512, 8, 512), (512, 4, 300), (512, 60, 470), (100, 8, 90), (20, 4, 15), (61, 30, 40)]
    )
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.shape}")
def test_trained_rows_are_the_papers(table: Floats) -> None:
    """The procedure stops at the same cut."""
    assert trained_rows(torch.from_numpy(table)) == cut_of(table)


def test_procedures_cut_somewhere() -> None:
    """The tables are not all cut at one end, where a wrong procedure would be right by chance."""
    assert len({trained_rows(torch.from_numpy(table)) for table in TABLES}) > 3


@pytest.mark.parametrize("num_positions", [513, 1024, 4096])
def test_interpolation_is_linear_between_exact_ends(num_positions: int) -> None:
    """The first row and the last trained one stay, and the others lie on the lines between rows."""
    table = TABLES[0]
    kept = cut_of(table)

    stretched = interpolate_positions(torch.from_numpy(table), num_positions).numpy()

    assert stretched.shape == (num_positions, table.shape[1])
    assert (stretched[0] == table[0]).all()
    assert (stretched[-1] == table[kept - 1]).all()
    index = np.linspace(0, kept - 1, num_positions)
    expected = np.stack([np.interp(index, np.arange(kept), column) for column in table[:kept].T], 1)
    np.testing.assert_allclose(stretched, expected, rtol=0, atol=1e-9)


def test_interpolation_keeps_the_dtype() -> None:
    """A float32 table gives a float32 table that is close to the float64 one."""
    table = torch.from_numpy(TABLES[0])

    stretched = interpolate_positions(table.float(), 4096)

    assert stretched.dtype == torch.float32
    torch.testing.assert_close(stretched.double(), interpolate_positions(table, 4096), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rows", "requested"), [(19, 512), (512, 511), (512, 20), (512, 70_000)])
def test_tables_that_cannot_be_stretched(rows: int, requested: int) -> None:
    """There are too few rows to find the trained ones, more than are requested, or more requested than models have."""
    with pytest.raises(ValueError, match=f"cannot interpolate a table of {rows} positions to {requested}"):
        interpolate_positions(torch.zeros(rows, 4), requested)

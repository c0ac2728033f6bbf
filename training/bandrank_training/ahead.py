"""Reads batches ahead, in a process of its own: a GPU would wait for the Python that lays them out."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from bandrank_training.batches import GroupReader, TrainingBatch

AHEAD = 4  # batches that wait for the trainer


def batches_for(device: torch.device, reader: GroupReader, groups_read: int) -> Iterator[TrainingBatch]:
    """`reader.batches`, read ahead if a GPU trains."""
    return read_ahead(reader, groups_read) if device.type == "cuda" else reader.batches(groups_read)


class _Batches(IterableDataset[TrainingBatch]):
    def __init__(self, reader: GroupReader, groups_read: int) -> None:
        self._reader, self._groups_read = reader, groups_read

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self._reader.batches(self._groups_read)


def read_ahead(reader: GroupReader, groups_read: int = 0) -> Iterator[TrainingBatch]:
    """Yields what `reader.batches` yields, in the same order. The process ends with the iterator.

    It is a copy of this one, so that texts and tokenizer need not be sent to it; it never touches a GPU.
    """
    return iter(
        DataLoader(
            _Batches(reader, groups_read),
            batch_size=None,
            num_workers=1,
            prefetch_factor=AHEAD,
            multiprocessing_context="fork",
        )
    )

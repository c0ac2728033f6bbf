"""The results of a computation under way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Piece = TypeVar("Piece")
Whole = TypeVar("Whole")
OtherPiece = TypeVar("OtherPiece")
OtherWhole = TypeVar("OtherWhole")


@dataclass(frozen=True, eq=False)
class Arriving(Generic[Piece, Whole]):
    """A computation that has begun; calling it waits for its end and returns all of its results, or raises its error.

    early: waits until another computation would begin soon, so that requests that arrive until then can join that one;
    meanwhile it yields the pieces of the results that are complete. Some may be missing; none comes from a part that
    failed. Called again, it goes on until `wake` is called or all has ended.
    wake: makes `early` return, from any thread, if there is room already; None if it cannot wait.
    ended: whether all has ended, as far as is known.
    """

    whole: Callable[[], Whole]
    early: Callable[[], Iterator[Piece]] = lambda: iter(())
    wake: Callable[[], None] | None = None
    ended: Callable[[], bool] = lambda: False

    def __call__(self) -> Whole:
        return self.whole()

    def read(
        self, whole: Callable[[Whole], OtherWhole], pieces: Callable[[Iterator[Piece]], Iterator[OtherPiece]]
    ) -> "Arriving[OtherPiece, OtherWhole]":
        """The same computation, with its results and its early pieces read by functions."""
        return Arriving(lambda: whole(self()), lambda: pieces(self.early()), self.wake, self.ended)

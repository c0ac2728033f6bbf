"""How much one request may ask for."""

from dataclasses import dataclass

from bandrank.errors import InputTooLarge


@dataclass(frozen=True)
class Limits:
    """max_body_bytes: of a body, or of a line of a stream.  max_candidates: of a request."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_candidates: int = 2048

    def check_candidates(self, count: int) -> None:
        """Raises InputTooLarge for more candidates than a request may have."""
        if count > self.max_candidates:
            raise InputTooLarge(f"too many candidates: {count} (limit {self.max_candidates})")

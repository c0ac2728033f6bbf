"""What bandrank logs, as lines on stderr."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bandrank.logs import handler_of


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Writes each record as a line of text, as the service does, until the block ends."""
    handler = handler_of("text")
    logging.getLogger("bandrank").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("bandrank").removeHandler(handler)

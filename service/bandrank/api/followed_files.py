"""Files that are read again when they change, without a restart."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from bandrank.errors import BadSetting

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class FollowedFiles:
    """Looks at files when their content is used, at most once a second; nothing polls. Used from the event loop.

    A link counts as its target: to renew a secret, Kubernetes swaps a link and writes no file.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], str], *, kept: str, clock: Callable[[], float]) -> None:
        """Reads the files for the first time.

        read: says what was read, for the log; raises BadSetting if they cannot be used, and then changes nothing.
        kept: what the log says in that case.
        """
        self._paths = [Path(path) for path in paths]
        self._read, self._kept, self._clock = read, kept, clock
        self._failed = False
        self._stamps = self._seen()
        read()
        self._look_at = clock() + LOOK_EVERY_S

    def look(self) -> None:
        """Reads the files if they have changed or could not be used before; logs a failure once for each change."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_EVERY_S
        before, self._stamps = self._stamps, self._seen()
        changed = self._stamps != before  # since before they were last read, so that no change is missed
        if not changed and not self._failed:
            return
        self._failed = True
        try:
            said = self._read()
        except BadSetting as error:
            if changed:
                log.error("%s: %s", self._kept, error)  # noqa: TRY400 - the message says it all
            return
        self._failed = False
        log.info("read again: %s", said)

    def _seen(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...] | None:
    """A stamp that changes if a file is written in place, replaced or made readable; None if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino, facts.st_dev

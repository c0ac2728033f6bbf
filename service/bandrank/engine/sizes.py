"""Which requests are too large to be scored in time, however long they wait for others."""

from bandrank.engine.throughput import Throughput
from bandrank.errors import InputTooLarge, Overloaded

ADVICE = "send fewer or shorter texts"
BELIEVED_S = 30.0  # after which nobody is refused because of a speed that nothing has confirmed since


def check_size(throughput: Throughput, lane: str, rows: float, batch_rows: float, max_s: float) -> None:
    """Raises InputTooLarge if rows would take an idle service more than `max_s` seconds at the best speed that it ever
    had, and Overloaded if they would at present.

    A service that was slow for a while scores such a request after BELIEVED_S: nothing else might show that it is as
    fast as before, since a client that gets 413 does not come again. batch_rows: of the batches that they would make.
    """
    best_s = throughput.best_seconds(lane, rows, batch_rows=batch_rows)
    if best_s > max_s:
        raise InputTooLarge(f"scoring this request would take {best_s:.0f} s (limit {max_s:.0f} s): {ADVICE}")
    now_s = throughput.least_seconds(lane, rows, batch_rows=batch_rows)
    left_s = BELIEVED_S - throughput.age_s(lane, batch_rows=batch_rows)
    if now_s > max_s and left_s > 0:
        raise Overloaded(
            f"scoring this request would take {now_s:.0f} s (limit {max_s:.0f} s) at the present speed, which was "
            f"better before: {ADVICE}, or try again in {left_s:.1f} s",
            retry_after_s=left_s,
        )

"""The service accepts new connections before it has done all the work of earlier ones."""

import socket
import threading
import time
from contextlib import ExitStack

import uvicorn
from starlette.types import Receive, Scope, Send
from support.tasks import HANG_S

from bandrank.api.accepting import AT_ONCE, AcceptingServer
from bandrank.api.pace import QUANTUM_S, Pace, Paced

PROBE = "/healthz"


class Application:
    """An ASGI application with work that fills a round of the loop, and a probe that notes how much of it was done."""

    def __init__(self) -> None:
        self.held, self.go = threading.Event(), threading.Event()
        self.done, self.seen = 0, -1

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/hold":
            self.held.set()
            self.go.wait(HANG_S)
        elif scope["path"] == PROBE:
            self.seen = self.done
        else:
            time.sleep(2 * QUANTUM_S)  # noqa: ASYNC251 - the loop is to be held
            self.done += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


def test_a_probe_does_not_wait_for_the_work_of_every_connection_before_it() -> None:
    """Four times as many connections as a round of the loop accepts come while it is busy, and the probe after them."""
    app = Application()
    config = uvicorn.Config(Paced(app, Pace(), [PROBE]), port=0, log_config=None, lifespan="off", access_log=False)
    server = AcceptingServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:

            def ask(path: str) -> socket.socket:
                connection = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=HANG_S))
                connection.sendall(b"GET %b HTTP/1.1\r\nHost: b\r\n\r\n" % path.encode())
                return connection

            ask("/hold")
            assert app.held.wait(HANG_S)
            working = [ask("/work") for _ in range(4 * AT_ONCE)]
            probe = ask(PROBE)
            app.go.set()
            assert probe.recv(1000).startswith(b"HTTP/1.1 200")
            assert all(one.recv(1000).startswith(b"HTTP/1.1 200") for one in working)
        finally:
            app.go.set()
            server.should_exit = True
            thread.join(HANG_S)

    assert not thread.is_alive()
    assert app.done == len(working)
    assert 0 <= app.seen < len(working) / 4

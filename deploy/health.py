"""Ends with 0 if the service in this container is ready, else with 1. Standard library alone, to start at once.

By http.client, because urllib would send this through a configured proxy. Asks where the service listens, which may be
`::` alone; its certificate need not name the loopback address.
"""

import http.client
import os
import ssl
import sys

LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask, not to listen
PATH = "/_bandrank/readyz"  # of a search proxy too, which would hand any other on to the search engine
TIMEOUT_S = 4.0


def main() -> int:
    """Asks for readiness; returns the exit status. Raises OSError if nothing answers, which ends with 1 too."""
    host, port = os.environ.get("BANDRANK_HOST", ""), int(os.environ["BANDRANK_PORT"])
    address = LOOPBACK.get(host, host), port
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    if os.environ.get("BANDRANK_TLS_CERTIFICATE"):
        context = ssl._create_unverified_context()  # noqa: S323 - it is this container that is asked
        connection = http.client.HTTPSConnection(*address, timeout=TIMEOUT_S, context=context)
    connection.request("GET", PATH)
    return int(connection.getresponse().status != http.HTTPStatus.OK)


if __name__ == "__main__":
    sys.exit(main())

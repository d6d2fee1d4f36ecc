"""A free port on loopback for a server that is stopped and started again there."""

import secrets
import socket
from contextlib import suppress

FIRST_PORT, PORTS = 12_000, 20_000


def free_port() -> int:
    """One that stays free while whoever listens there is down: below those that clients' connections are given."""
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

#!/usr/bin/env python3
"""Ranks that find one another over MASTER_ADDR and MASTER_PORT and add up 1² + 2² + … + N², each its own share.

Rank 0 gathers over plain sockets and checks the sum against the closed formula; it fails when they differ.
"""

import os
import socket
import sys
import time

LIMIT_S = 30.0
N = 300_000


def main() -> int:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = sum(number * number for number in range(1 + rank, N + 1, world))
    print(f"rank {rank} of {world} adds {own}", flush=True)
    if rank != 0:
        send(rank, own)
        return 0
    total = own + sum(gather(world - 1).values())
    expected = N * (N + 1) * (2 * N + 1) // 6
    print(f"sum of squares up to {N}: {total} ({'right' if total == expected else f'wrong, it is {expected}'})")
    return 0 if total == expected else 1


def master() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def gather(count: int) -> dict[int, int]:
    """What every other rank sends, by rank."""
    address, port = master()
    received: dict[int, int] = {}
    with socket.create_server((address, port)) as server:
        server.settimeout(LIMIT_S)
        while len(received) < count:
            connection, _ = server.accept()
            with connection, connection.makefile() as lines:
                rank, value = lines.readline().split()
                received[int(rank)] = int(value)
    return received


def send(rank: int, value: int) -> None:
    """Tell rank 0, which may still be starting."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with socket.create_connection(master(), timeout=LIMIT_S) as connection:
                connection.sendall(f"{rank} {value}\n".encode())
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

"""The process that hosts JAX's coordination service, so that no rank's end takes the others with it.

JAX ends a process whose service is gone. So the service belongs to none of the ranks: rank 0 starts this
process, every rank holds a connection to it, and it leaves when the last connection is closed.
"""

from __future__ import annotations

import select
import socket
import sys
import time

STARTUP = 60.0  # seconds that the first ranks may take
NO_HEARTBEATS = 10**7  # seconds; the collectives themselves notice who is gone


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def attend(listener: socket.socket, ranks: int, startup: float = STARTUP) -> None:
    """Return when all ``ranks`` have come and gone, or nobody is left after ``startup`` seconds."""
    held: list[socket.socket] = []
    came, deadline = 0, time.monotonic() + startup
    while held or came < ranks:
        ready, _, _ = select.select([listener, *held], [], [], 1.0)
        if not held and time.monotonic() > deadline:
            return
        for connection in ready:
            if connection is listener:
                held.append(listener.accept()[0])
                came += 1
            elif not connection.recv(64):
                held.remove(connection)
                connection.close()


def main(ranks: int) -> None:
    """Serve ``ranks`` processes; prints the two ports."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    port = free_port()
    service = _jax.get_distributed_runtime_service(
        f"[::]:{port}" if socket.has_ipv6 else f"0.0.0.0:{port}",
        ranks,
        heartbeat_timeout=NO_HEARTBEATS,
        shutdown_timeout=5,
        recoverable=True,
    )
    listener = socket.create_server(("", 0), backlog=ranks)
    print(port, listener.getsockname()[1], flush=True)
    attend(listener, ranks)
    service.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))

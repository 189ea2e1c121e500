"""The process that compiles: libtpu ends its process on some programs. ``python -m … FD`` talks over a socket."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any


def _compiled(data: bytes, quick: bool, where: Any) -> tuple[str, Any]:
    from torchtpu.runtime import portable
    from torchtpu.runtime.topology import CompileError

    try:
        made = portable.compile_for(data, where, quick)
    except CompileError as error:
        return "refused", str(error)
    names = ("flops", "bytes_accessed", "seconds", "arguments", "temporaries", "peak")
    return "compiled", {name: getattr(made, name) for name in names}


def serve(connection: Connection) -> None:
    """Answer each program with its state and numbers; ends with the other side."""
    from torchtpu.runtime import topology

    try:
        where = topology.topology(connection.recv())
    except (ValueError, RuntimeError) as error:
        connection.send(("error", str(error)))
        return
    connection.send(("ready", where.target))
    while True:
        try:
            data, quick = connection.recv()
        except EOFError:
            return
        connection.send(_compiled(data, quick, where))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))

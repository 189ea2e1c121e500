"""Joins the processes of a job into one JAX run time: address, client, and the device of every rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from torchtpu import config
from torchtpu.errors import TorchTpuError
from torchtpu.runtime import client
from torchtpu_dist import launch
from torchtpu_dist.coordinator import NO_HEARTBEATS


@dataclass(frozen=True)
class World:
    """The processes that were joined: this one's rank, and the JAX devices in the order of ranks."""

    token: str
    rank: int
    devices: tuple[Any, ...]


_world: list[World] = []
_held: list[socket.socket] = []  # open as long as this process lives: the coordinator counts them


def join(store: Any, rank: int, size: int, timeout: timedelta) -> World:
    """The world of ``size`` processes that share ``store``; a process can join one only.

    RuntimeError if the device was in use before, or the process belongs to another world.
    """
    if size == 1 and not _world:
        return current()
    if rank == 0:
        token = _world[0].token if _world else _start_coordinator(size)
        store.set("world", token)
    token = store.get("world").decode()
    if _world:
        if (_world[0].token, _world[0].rank, len(_world[0].devices)) != (token, rank, size):
            raise TorchTpuError(
                "torchtpu: this process belongs to another world of processes; "
                "start new processes for a job of another size or order of ranks"
            )
        return _world[0]
    _connect(token, rank, size, timeout)
    world = World(token, rank, _devices(store, rank, size))
    _world.append(world)
    return world


def current() -> World:
    """The world that this process has joined."""
    return _world[0] if _world else World("alone", 0, (client.device(),))


def _reachable() -> str:
    """This host's address as the other processes see it."""
    if forced := config.env("COORDINATOR_HOST"):
        return forced
    peer = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # sends nothing: asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _start_coordinator(size: int) -> str:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "torchtpu_dist.coordinator", str(size)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for the ranks, which end it by leaving
        text=True,
    )
    assert process.stdout is not None
    ports = process.stdout.readline().split()
    if len(ports) != 2:
        process.kill()
        raise TorchTpuError("torchtpu: JAX's coordination service could not be started")
    process.returncode = 0  # it outlives this process; Popen shall not warn about that
    return f"{_reachable()} {ports[0]} {ports[1]}"


def _connect(token: str, rank: int, size: int, timeout: timedelta) -> None:
    from jax._src import distributed, xla_bridge

    if client.started() or xla_bridge.backends_are_initialized():
        raise TorchTpuError(
            "torchtpu: init_process_group comes before the first use of device 'tpu' (and of JAX) in a "
            "process: the processes join each other when the device starts"
        )
    host, port, liveness = token.split()
    _held.append(socket.create_connection((host, int(liveness)), timeout.total_seconds()))
    _held[-1].settimeout(None)
    from jax._src.lib import _jax

    # What jax.distributed.initialize does, but for the service, which runs in its own process, and for
    # JAX's handler of SIGTERM, which would keep a launcher from ending the job.
    state = distributed.global_state
    state.client = _jax.get_distributed_runtime_client(
        f"{host}:{port}",
        rank,
        init_timeout=max(1, int(timeout.total_seconds())),
        shutdown_timeout=5,
        heartbeat_timeout=NO_HEARTBEATS,
        use_compression=True,
    )
    state.client.connect()
    state.process_id, state.num_processes = rank, size
    state.coordinator_address = f"{host}:{port}"
    contexts: list[Callable[[str], Any]] = [_with_collectives, partial(launch.with_chip, rank, size)]
    client.starting.extend(contexts)
    try:
        client.device()
    finally:
        for context in contexts:
            client.starting.remove(context)


@contextmanager
def _with_collectives(platform: str) -> Iterator[None]:
    """The CPU client needs to be told how processes reach each other; the user's setting comes back."""
    import jax

    name = "jax_cpu_collectives_implementation"
    before = getattr(jax.config, name)
    if platform == "cpu" and not before:
        jax.config.update(name, "gloo")
    try:
        yield
    finally:
        jax.config.update(name, before)


def _devices(store: Any, rank: int, size: int) -> tuple[Any, ...]:
    """Every rank's device; JAX's numbering of processes need not be that of the ranks."""
    store.set(f"device/{rank}", str(client.device().id))
    ids = [int(store.get(f"device/{r}")) for r in range(size)]
    by_id = {d.id: d for d in client.device().client.devices()}
    return tuple(by_id[i] for i in ids)

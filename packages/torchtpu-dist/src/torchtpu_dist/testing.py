"""Runs a script on several ranks for a test, with a limit after which nothing is left running.

A script may be a list of checks, functions ``check_…``: `record_checks` runs them on a rank, `run_checks` all ranks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_dist.coordinator import free_port


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (negative: the signal), and what it printed."""

    code: int
    output: str


def run_ranks(
    script: str | Path,
    folder: Path,
    ranks: int = 2,
    timeout: float = 90.0,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Run ``script`` once per rank with torchrun's variables set; output goes to files in ``folder``.

    Every process that is left after ``timeout`` seconds is killed, and its code is -9.
    """
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        **(env or {}),
    }
    files = [folder / f"rank{rank}.txt" for rank in range(ranks)]
    processes = []
    for rank, file in enumerate(files):
        with file.open("wb") as stream:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(script), *arguments],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
            )
    deadline = time.monotonic() + timeout
    try:
        codes = [_wait(process, deadline) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Ended(code, file.read_text(errors="replace")) for code, file in zip(codes, files, strict=True)]


def checks(script: Path) -> list[str]:
    """The names of a script's checks, in their order."""
    return re.findall(r"^def (check_\w+)", script.read_text(), re.M)


def run_checks(script: Path, folder: Path, ranks: int, timeout: float) -> list[dict[str, str]]:
    """For each rank, what went wrong in each check of ``script``, or nothing; AssertionError if a rank ends badly.

    The script is told, as its argument, where to `record_checks`.
    """
    file = folder / "found"
    for rank, end in enumerate(run_ranks(script, folder, ranks, timeout, [str(file)])):
        assert end.code == 0, f"rank {rank}: {end.output[-3000:]}"
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(ranks)]


def record_checks(names: Mapping[str, Any], file: str, rank: int) -> None:
    """Run the checks among a script's ``names``, and write what went wrong for `run_checks`."""
    found = {}
    for name, check in [(n, f) for n, f in names.items() if n.startswith("check_")]:
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    Path(f"{file}.{rank}").write_text(json.dumps(found))


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int:
    try:
        return process.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()

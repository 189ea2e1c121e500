"""Compiles what the operator database makes for TPUs that are not here, and counts what is refused.

``python -m tests.conformance.aot --topology v5e:2x2 --dtype float32 --limit 1 --match linalg``
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.conformance import harness
from tests.conformance.aot_worker import Refusal, Worker

TOPOLOGIES = ("v5e:2x2", "tpu7x:2x2x1")


def compile_all(
    cases: Sequence[harness.Case],
    topologies: Sequence[str],
    limit: int | None,
    workers: int = 2,
    seen: Callable[[Any], None] = lambda _: None,
) -> tuple[dict[str, int], list[Refusal]]:
    """Compile every distinct program of ``cases``: counts for each topology, and the refusals."""
    counts: dict[str, int] = collections.Counter()
    refused: list[Refusal] = []
    queue, lock = iter(cases), threading.Lock()

    def work() -> None:
        worker = Worker()
        try:
            while True:
                with lock:
                    case = next(queue, None)
                if case is None:
                    return
                for event in worker.run(case, topologies, limit):
                    seen(event)
                    if isinstance(event, Refusal):
                        refused.append(event)
                    else:
                        counts[event] += 1
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts, refused


def _show(event: Any) -> None:
    if isinstance(event, Refusal):
        print(f"{event.case} {event.program} {event.topology}: {event.why[:300]}", flush=True)


def main() -> None:
    """Print every refusal and how many programs were compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default=" ".join(TOPOLOGIES))
    parser.add_argument("--dtype", default="float32 bfloat16")
    parser.add_argument("--kind", default="forward")
    parser.add_argument("--match", default="", help="regular expression on the operator's name")
    parser.add_argument("--limit", type=int, default=2, help="samples of each case; 0 means all")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th case from the i-th")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="write the refusals to this file")
    options = parser.parse_args()
    dtypes = [getattr(torch, d) for d in options.dtype.split()]
    index, count = map(int, options.shard.split("/"))
    cases = [c for c in harness.cases(dtypes, options.kind.split()) if re.search(options.match, c.name)]
    start = time.monotonic()
    counts, refused = compile_all(
        cases[index::count], options.topology.split(), options.limit or None, options.workers, _show
    )
    for name, number in counts.items():
        print(f"{name:14} {number:6} programs, {sum(r.topology == name for r in refused):5} refused")
    print(f"{time.monotonic() - start:.0f} s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([vars(r) for r in refused], file, indent=1)


if __name__ == "__main__":
    main()

"""Counts over the whole database: ``python -m tests.conformance --dtype float32 --kind forward --match add``.

With ``--compile`` each sample goes through torch.compile: ``--compile --dtype float32 --kind forward --limit 1``.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import time
import warnings

import torch
from tests.conformance import compiled
from tests.conformance.harness import KINDS, cases, check, samples

DTYPES = "float32 bfloat16 int64 bool complex64"


def main() -> None:
    """Print every failing sample and the shares that pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default=DTYPES)
    parser.add_argument("--kind", default=" ".join(KINDS))
    parser.add_argument("--match", default="", help="regular expression on the operator's name")
    parser.add_argument("--limit", type=int, default=4, help="samples of each case; 0 means all")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th case from the i-th")
    parser.add_argument(
        "--compile", action="store_true", help="each forward sample by torch.compile, as one graph"
    )
    parser.add_argument("--json", help="write the failures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from torchtpu.dispatch import fallback

    dtypes = [getattr(torch, d) for d in options.dtype.split()]
    total, bad = collections.Counter(), collections.Counter()
    failures, slow = [], {}
    index, count = map(int, options.shard.split("/"))
    if options.compile:
        chosen = [case for case in cases(dtypes, ["forward"]) if re.search(options.match, case.name)]
        print(compiled.report(compiled.count(chosen[index::count], options.limit or None)))
        print("on the CPU:", dict(fallback.fallbacks()))
        return
    for case in list(cases(dtypes, options.kind.split()))[index::count]:
        if not re.search(options.match, case.name):
            continue
        group, start = f"{str(case.dtype)[6:]} {case.kind}", time.monotonic()
        for number, sample in enumerate(samples(case, options.limit or None)):
            total[group] += 1
            why = check(case, sample)
            if why is not None:
                bad[group] += 1
                failures.append({"case": str(case), "sample": number, "why": why})
                print(f"{case} #{number}: {why[:200]}", flush=True)
        slow[str(case)] = time.monotonic() - start
    for group in total:
        share = 100 * (1 - bad[group] / total[group])
        print(f"{group:24} {total[group]:6} samples, {bad[group]:5} fail, {share:6.2f} % pass")
    print("slowest:", sorted(slow.items(), key=lambda x: -x[1])[:10])
    print("on the CPU:", dict(fallback.fallbacks()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"failures": failures, "total": total, "fallbacks": fallback.fallbacks()}, file)


if __name__ == "__main__":
    main()

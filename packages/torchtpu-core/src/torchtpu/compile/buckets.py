"""Which sizes programs are compiled for when a size varies from call to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_COUNT = 4


@dataclass
class Buckets:
    """The bucket of each size of each symbol, alike for the graphs of one compilation.

    ``size`` rounds up to its multiples, else to powers of two; ``count`` is how many buckets a symbol has
    before a size that fits into a larger one goes there. A bounded symbol with a given ``count`` has buckets
    that grow by one factor from its least to its largest size. The first size of a symbol without a bound is
    a bucket of its own: torch calls many a size symbolic that never changes. ``required`` makes it an error
    that a graph cannot be padded; else each size has a program.
    """

    count: int | None = None
    size: int | None = None
    required: bool = False
    chosen: dict[tuple[Any, int], int] = field(default_factory=dict)

    def bucket(self, symbol: Any, value: int, low: int, high: int | None) -> int:
        """The size to compile for, at least ``value`` and at most ``high``."""
        key = symbol, value
        if key not in self.chosen:
            self.chosen[key] = self._choose(symbol, value, low, high)
        return self.chosen[key]

    def varies(self, symbol: Any, high: int | None) -> bool:
        """Whether more than one size of the symbol was seen, or is to be expected."""
        return high is not None or sum(s == symbol for s, _ in self.chosen) > 1

    def _choose(self, symbol: Any, value: int, low: int, high: int | None) -> int:
        known = {n for (s, _), n in self.chosen.items() if s == symbol}
        if high is None and not known:
            return value
        wanted = self._rounded(value, low, high)
        if high is not None:
            wanted = max(value, min(wanted, high))
        larger = [n for n in known if n >= value]
        if wanted in known or len(known) < (self.count or DEFAULT_COUNT):
            return wanted
        if larger:
            return min(larger)
        grown = max(wanted, 4 * max(known))
        return grown if high is None else max(value, min(grown, high))

    def _rounded(self, value: int, low: int, high: int | None) -> int:
        if self.size:
            return -(-value // self.size) * self.size
        if self.count and high is not None:
            low = max(low, 1)
            steps = (math.ceil(low * (high / low) ** (i / self.count)) for i in range(1, self.count))
            return next((n for n in steps if n >= value), high)
        return 1 << (value - 1).bit_length()


def bounds(values: Mapping[Any, int], meta: Any) -> dict[Any, tuple[int, int | None]]:
    """The least and largest value that torch allows for each symbol; None for no bound."""
    found = {}
    for symbol in values:
        known = meta.shape_env.var_to_range.get(symbol)
        lower = known.lower if known is not None else None
        low = (
            int(lower) if lower is not None and lower.is_Integer else 0
        )  # a number read from data has no bound
        upper = known.upper if known is not None else None
        finite = upper is not None and upper.is_Integer and int(upper) < 1 << 40
        found[symbol] = low, int(upper) if finite else None  # type: ignore[arg-type]
    return found


def distinct(
    sizes: Mapping[Any, int], high: Mapping[Any, int | None], fixed: Mapping[Any, int]
) -> list[dict[Any, int]]:
    """Other sizes than ``sizes``, different for each symbol, to see which numbers of a program depend on them."""
    moving = [s for s in sizes if s not in fixed]
    below = {**fixed, **{s: sizes[s] - 1 - 2 * i for i, s in enumerate(moving)}}
    above = {**fixed, **{s: sizes[s] + 3 + 2 * i for i, s in enumerate(moving)}}
    half = {**fixed, **{s: sizes[s] // 2 for s in moving}}
    out = [c for c in (below, above, half) if all(c[s] >= 2 for s in moving)]
    return [c for c in out if all(h is None or c[s] <= h for s, h in high.items())]

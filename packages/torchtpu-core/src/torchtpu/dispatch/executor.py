"""Who runs a call: the modes put their executors here, so dispatch need not know them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from torchtpu import config

_has, _get, _KEY = torch._C._is_key_in_tls, torch._C._get_obj_in_tls, config.MODE_KEY


class Run(Protocol):
    """Computes one call: new buffers of the written storages, then those of the results."""

    def __call__(
        self, entry: Any, stores: Sequence[Any], scalars: Sequence[tuple[type, Any]], state: Any
    ) -> list[Any]:
        """``state`` is the random stream's buffer, or None."""


class Check(Protocol):
    """Looks at a call before and after it ran."""

    def run(self, family: Any, args: Any, kwargs: Any, launch: Callable[[], Any]) -> Any:
        """Launch and check; raises at the user's line."""

    def located(self, error: BaseException, family: Any, args: Any, kwargs: Any) -> BaseException:
        """``error`` with the operator and the user's line."""


runs: dict[str, Run] = {}
# a mode's own per-op path for one operator: the arguments to the result, or None to decline
Front = Callable[[tuple[Any, ...]], Any]
fronts: dict[str, Callable[[Any, bool], Front]] = {}
checks: dict[str, Check] = {}


def active() -> str:
    """The calling thread's mode."""
    return (_get(_KEY) if _has(_KEY) else None) or config.default_mode()


def check() -> Check | None:
    """The active mode's check, if it has one."""
    return checks.get(active()) if config.special[0] else None


def run() -> Run:
    """The active mode's executor."""
    return runs[active()]

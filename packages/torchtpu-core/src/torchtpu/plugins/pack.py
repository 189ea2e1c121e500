"""`Pack`: what a distribution exposes as its entry point, filled by decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchtpu.plugins.records import Decomposition, Lowering, PromoteKind

F = TypeVar("F", bound=Callable[..., Any])


class Pack:
    """A collection of records under one API version, e.g. ``Pack(api="1.0")``."""

    def __init__(self, *, api: str) -> None:
        self.api = api
        self.lowerings: list[Lowering] = []
        self.decompositions: list[Decomposition] = []

    def lowering(
        self,
        *ops: str,
        promote: PromoteKind | None = None,
        static: tuple[str, ...] = (),
        rng: bool = False,
        host: bool = False,
        validate: Callable[..., None] | None = None,
        replaces: str | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the lowering of each operator in ``ops``."""

        def register(fn: F) -> F:
            for op in ops:
                self.lowerings.append(
                    Lowering(
                        op=op,
                        fn=fn,
                        promote=promote,
                        static=static,
                        rng=rng,
                        host=host,
                        validate=validate,
                        replaces=replaces,
                    )
                )
            return fn

        return register

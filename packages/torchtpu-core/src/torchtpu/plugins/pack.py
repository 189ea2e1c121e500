"""`Pack`: what a distribution exposes as its entry point, filled by decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torchtpu.errors import PackApiError
from torchtpu.plugins.hookspecs import hookimpl
from torchtpu.plugins.newop import Backward, Definition, NewOp
from torchtpu.plugins.opschema import name_of
from torchtpu.plugins.records import (
    CallSpec,
    Check,
    Collective,
    Decomposition,
    Finding,
    GraphPass,
    Kernel,
    Lowering,
    Namespace,
    Probe,
    PromoteKind,
    ShardingRule,
)

PACK_API = (1, 0)
F = TypeVar("F", bound=Callable[..., Any])


def check_api(api: str) -> None:
    """Raise `PackApiError` unless this core serves pack API ``api`` (``"major.minor"``)."""
    try:
        major, minor = (int(part) for part in api.split("."))
    except ValueError:
        raise PackApiError(f"pack API {api!r} is not of the form 'major.minor'") from None
    if major != PACK_API[0] or minor > PACK_API[1]:
        have = ".".join(map(str, PACK_API))
        raise PackApiError(f"written for pack API {api}, this torchtpu-core has {have}")


class Pack:
    """A collection of records under one API version, e.g. ``Pack(api="1.0")``; itself a pluggy plug-in.

    Raises `PackApiError` at once when core has an older API, before the pack touches a newer name.
    """

    def __init__(self, *, api: str) -> None:
        check_api(api)
        self.api = api
        self.lowerings: list[Lowering] = []
        self.decompositions: list[Decomposition] = []
        self.kernels: list[Kernel] = []
        self.graph_passes: list[GraphPass] = []
        self.sharding_rules: list[ShardingRule] = []
        self.collectives: list[Collective] = []
        self.namespaces: list[Namespace] = []
        self.probes: list[Probe] = []
        self.checks: list[Check] = []
        self.commands: list[Any] = []

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
                record = Lowering(
                    op=op,
                    fn=fn,
                    promote=promote,
                    static=static,
                    rng=rng,
                    host=host,
                    validate=validate,
                    replaces=replaces,
                )
                self.lowerings.append(record)
            return fn

        return register

    def op(
        self,
        schema: str,
        *,
        sharding: str | None = None,
        static: tuple[str, ...] = (),
        dtypes: tuple[str, ...] | None = None,
        backward: Backward = "vjp",
        fake: Callable[..., Any] | None = None,
        gradient: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[..., Any]], NewOp]:
        """Define a new torch operator from its schema; gives back a torch callable with ``.reference``.

        The decorated JAX function defines its values, shapes and gradients on every device. ``backward`` is
        ``"vjp"``, None for an operator without a gradient, or a JAX function of (gradients, results, arguments…)
        that gives the gradients of the floating tensors. ``fake`` gives the results on torch's tensors without
        data, where sizes may be symbols. ``gradient(grads, outputs, needed, *arguments)`` is a torch function from
        the results and their gradients (None where there is none) to a dict of gradients by argument, in place of
        ``backward``; ``needed`` has the names that want one. Raises ValueError for a schema that writes or aliases
        its arguments.
        """
        name = name_of(schema)

        def register(fn: Callable[..., Any]) -> NewOp:
            record = Lowering(
                op=name, fn=fn, schema=schema, sharding=sharding, static=static, dtypes=dtypes,
                backward=backward, fake=fake, gradient=gradient,
            )  # fmt: skip
            self.lowerings.append(record)
            return NewOp(Definition.of(record))

        return register

    def decomposition(self, op: str, *, when: Literal["missing", "always"] = "missing") -> Callable[[F], F]:
        """Register the decorated function (on torch tensors) as a decomposition of ``op``."""

        def register(fn: F) -> F:
            self.decompositions.append(Decomposition(op=op, fn=fn, when=when))
            return fn

        return register

    def kernel(
        self,
        op: str,
        *,
        name: str,
        fn: Callable[..., Any] | str,
        platforms: tuple[str, ...] = ("tpu",),
        generations: tuple[str, ...] | None = None,
        priority: int = 0,
        vjp: str | None = "reference",
        interpret: bool = True,
    ) -> Callable[[Callable[[CallSpec], str | None]], Callable[[CallSpec], str | None]]:
        """Register ``fn`` as a kernel; the decorated predicate says why it cannot serve a call, or None."""

        def register(unsuitable: Callable[[CallSpec], str | None]) -> Callable[[CallSpec], str | None]:
            record = Kernel(
                op=op,
                name=name,
                fn=fn,
                unsuitable=unsuitable,
                platforms=platforms,
                generations=generations,
                priority=priority,
                vjp=vjp,
                interpret=interpret,
            )
            self.kernels.append(record)
            return unsuitable

        return register

    def graph_pass(
        self,
        name: str,
        *,
        stage: Literal["aten", "joint"] = "aten",
        after: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
    ) -> Callable[[F], F]:
        """Register the decorated function, which changes a ``torch.fx.GraphModule`` and says whether it did."""

        def register(run: F) -> F:
            self.graph_passes.append(GraphPass(name=name, stage=stage, run=run, after=after, before=before))
            return run

        return register

    def namespace(self, name: str, module: str) -> None:
        """Offer ``module`` as ``torch.tpu.<name>``."""
        self.namespaces.append(Namespace(name=name, module=module))

    def check(self, name: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
        """Register a health check for ``torchtpu doctor``."""

        def register(run: Callable[[], Finding]) -> Callable[[], Finding]:
            self.checks.append(Check(name=name, run=run))
            return run

        return register

    @hookimpl
    def torchtpu_lowerings(self) -> list[Lowering]:
        """The pack's lowerings."""
        return self.lowerings

    @hookimpl
    def torchtpu_decompositions(self) -> list[Decomposition]:
        """The pack's decompositions."""
        return self.decompositions

    @hookimpl
    def torchtpu_kernels(self) -> list[Kernel]:
        """The pack's kernels."""
        return self.kernels

    @hookimpl
    def torchtpu_graph_passes(self) -> list[GraphPass]:
        """The pack's graph passes."""
        return self.graph_passes

    @hookimpl
    def torchtpu_sharding_rules(self) -> list[ShardingRule]:
        """The pack's sharding rules."""
        return self.sharding_rules

    @hookimpl
    def torchtpu_collectives(self) -> list[Collective]:
        """The pack's collectives."""
        return self.collectives

    @hookimpl
    def torchtpu_namespaces(self) -> list[Namespace]:
        """The pack's namespaces."""
        return self.namespaces

    @hookimpl
    def torchtpu_probes(self) -> list[Probe]:
        """The pack's probes."""
        return self.probes

    @hookimpl
    def torchtpu_checks(self) -> list[Check]:
        """The pack's checks."""
        return self.checks

    @hookimpl
    def torchtpu_commands(self, cli: Any) -> None:
        """The pack's commands."""
        for command in self.commands:
            cli.add_command(command)

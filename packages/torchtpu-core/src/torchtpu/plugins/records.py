"""The frozen records that a pack contributes; they are inert data until core chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PromoteKind = Literal[
    "default", "no_opmath", "int_to_float", "always_bool", "complex_to_float", "bool_to_long"
]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a record came from: distribution and version, a content fingerprint, and the pack's name."""

    distribution: str
    version: str
    fingerprint: str = ""
    pack: str = ""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """What is known of a tensor before it has data: its shape and its dtype's name."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One operator call without data, as predicates see it.

    ``args`` maps each schema name to a :class:`TensorSpec`, a list of them, or a static value; a number
    that may vary without a new program is a :class:`TensorSpec` of shape ``()``, a dtype its name.
    ``target`` names the platform (``cpu``, ``tpu``, ``cuda``), ``generation`` the chip (``v5e``) or None.
    ``training`` says that the same program must also give the gradient.
    """

    op: str
    args: Mapping[str, Any]
    target: str
    generation: str | None = None
    training: bool = False
    mesh: Any = None


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """The meaning of one ATen operator as a pure function on JAX arrays.

    ``promote`` names torch's elementwise promotion rule; the tensors and scalars then arrive cast
    to torch's compute dtype. ``static`` names the Scalar or float arguments that must be Python
    values while tracing. ``rng`` asks for a JAX key as keyword ``key``. ``validate`` is run by debug
    mode on NumPy values and raises what CPU would raise. ``host`` marks a function on NumPy arrays
    that runs on the host by declaration (results whose shape depends on data, general ``eig``).
    ``schema`` defines a new operator, ``backward`` its gradient: ``"vjp"``, None, or a JAX function. Torch
    functions may take the place of what is derived: ``fake`` for shapes, ``gradient`` for the gradient.
    """

    op: str
    fn: Callable[..., Any]
    promote: PromoteKind | None = None
    static: tuple[str, ...] = ()
    rng: bool = False
    host: bool = False
    validate: Callable[..., None] | None = None
    schema: str | None = None
    replaces: str | None = None
    sharding: str | None = None
    dtypes: tuple[str, ...] | None = None
    backward: Literal["vjp"] | Callable[..., Any] | None = "vjp"
    fake: Callable[..., Any] | None = None
    gradient: Callable[..., Any] | None = None
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """An operator in terms of other torch operators; used when no lowering exists, or always."""

    op: str
    fn: Callable[..., Any]
    when: Literal["missing", "always"] = "missing"
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A faster implementation of an operator that already has a lowering.

    ``fn`` is a callable or ``"module:attribute"`` with the lowering's arguments; ``unsuitable`` says why it
    cannot serve a call, or None. ``priority`` decides among kernels: 0 for third parties, 100 for those
    that ship with torchtpu. ``vjp`` is ``"reference"`` where the lowering's gradient serves, or None where
    the kernel has none. ``interpret`` says that the kernel also runs in Pallas' interpret mode.
    """

    op: str
    name: str
    fn: Callable[..., Any] | str
    unsuitable: Callable[[CallSpec], str | None]
    platforms: tuple[str, ...] = ("tpu",)
    generations: tuple[str, ...] | None = None
    priority: int = 0
    vjp: str | None = "reference"
    interpret: bool = True
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class GraphPass:
    """A rewrite of a graph of ``torch.compile`` at one stage; ``run`` returns whether it changed anything.

    ``run`` gets the ``torch.fx.GraphModule``: at ``"joint"`` the one that computes results and gradients, before
    it is cut in two; at ``"aten"`` each one that becomes programs (forward, backward, inference). New nodes need
    no ``meta["val"]``. Passes run in an order that honours ``after`` and ``before``; names break ties.
    """

    name: str
    stage: Literal["aten", "joint"]
    run: Callable[[Any], bool]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class ShardingRule:
    """How an operator maps placements: JAX's ``custom_partitioning`` notation or a function."""

    op: str
    rule: str | Callable[..., Any]
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One way to run a collective of ``kind``."""

    kind: str
    name: str
    build: Callable[[Any], Callable[..., Any]]
    unsuitable: Callable[[Any], str | None]
    platforms: tuple[str, ...] = ("cpu", "tpu", "cuda")
    priority: int = 0
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """A sub-module of ``torch.tpu``, given as ``"module"`` and imported at first use."""

    name: str
    module: str
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A listener for core's events."""

    events: frozenset[str]
    handle: Callable[[Any], None]
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found: ``ok``, ``warn`` or ``error``, a sentence and a remedy."""

    level: Literal["ok", "warn", "error"]
    message: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A named health check for ``torchtpu doctor``."""

    name: str
    run: Callable[[], Finding]
    origin: Origin | None = None

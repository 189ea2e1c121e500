"""A compiled FX graph: one program, or several with operators between them that only eager mode can run."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import fx

from torchtpu.compile import host
from torchtpu.compile.buckets import Buckets
from torchtpu.compile.higher import describe_states
from torchtpu.compile.segment import Segment
from torchtpu.compile.walk import Env, Unlowerable, located
from torchtpu.errors import BucketingError

Step: TypeAlias = "Segment | fx.Node"


class Graph:
    """The callable that AOTAutograd gets for one of its graphs; takes its arguments in a list that it empties."""

    def __init__(self, module: fx.GraphModule, name: str, options: dict[str, Any], buckets: Buckets) -> None:
        self.module, self.name, self.options = module, name, options
        self.buckets = buckets
        self._boxed_call = True  # torch's sign for the list; wrappers copy it from the instance
        nodes = list(module.graph.nodes)
        returned = nodes[-1].args[0]
        describe_states(nodes)
        self.returned: list[Any] = list(returned) if isinstance(returned, list | tuple) else [returned]
        constants = [n for n in nodes if n.op == "get_attr" and _on_device(module, n)]
        self.constants = [getattr(module, str(n.target)) for n in constants]
        self.inputs = [n for n in nodes if n.op == "placeholder"] + constants
        body = [n for n in nodes if n.op not in ("placeholder", "output") and n not in constants]
        early, late = host.updates(body)
        rest = [n for n in body if n not in {*early, *late}]
        self.steps: list[Step] = [*early, *self._split(list(_grouped(rest)), set()), *late]

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph."""
        given = [*args, *self.constants]
        args.clear()
        env: Env = dict(zip(self.inputs, given, strict=True))
        index = 0
        while index < len(self.steps):
            step = self.steps[index]
            try:
                if isinstance(step, Segment):
                    env.update(zip(step.wanted, step([env[n] for n in step.inputs]), strict=True))
                else:
                    env[step] = _eager(step, env, self.module)
                index += 1
            except Unlowerable as error:
                if not isinstance(step, Segment):
                    raise
                if self.buckets.required and step.dynamic:
                    raise BucketingError(f"{error}{located(error.node)}") from None
                self.steps[index : index + 1] = self._split(step.nodes, {error.node})
        return [env[n] if isinstance(n, fx.Node) else n for n in self.returned]

    def _split(self, nodes: list[fx.Node], eager: set[fx.Node]) -> list[Step]:
        """Programs for ``nodes``, cut at those that must run eagerly."""
        steps: list[Step] = []
        run: list[fx.Node] = []
        for node in nodes:
            if node.target is operator.getitem and node.args[0] in eager:
                eager.add(node)
            if node not in eager:
                run.append(node)
                continue
            steps += self._segment(run)
            steps.append(node)
            run = []
        return steps + self._segment(run)

    def _segment(self, nodes: list[fx.Node]) -> list[Step]:
        if not nodes:
            return []
        inside = set(nodes)
        read = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
        output = next(n for n in reversed(self.module.graph.nodes) if n.op == "output")
        outside = {output} | {u for n in nodes for u in n.users if u not in inside}
        wanted = [n for n in nodes if any(u in outside for u in n.users)]
        return [Segment(self.module, nodes, list(read), wanted, self.name, self.options, self.buckets)]


def _grouped(nodes: Iterable[fx.Node]) -> Iterable[fx.Node]:
    """The nodes, with the parts of a result right behind the operator that makes it."""
    placed: set[fx.Node] = set()

    def place(node: fx.Node) -> Iterable[fx.Node]:
        if node not in placed:
            placed.add(node)
            yield node
            for user in node.users:
                if user.target is operator.getitem:
                    yield from place(user)

    for node in nodes:
        yield from place(node)


def _on_device(module: torch.nn.Module, node: fx.Node) -> bool:
    value = getattr(module, str(node.target), None)
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _eager(node: fx.Node, env: Env, module: torch.nn.Module) -> Any:
    """Run one node as a call; operators without a lowering end in the counted CPU fallback."""
    if node.op == "get_attr":
        return getattr(module, str(node.target))
    args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
    target: Any = node.target
    with torch._C._AutoDispatchBelowAutograd():
        return target(*args, **kwargs)

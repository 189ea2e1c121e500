"""Graph passes of packs and our own: order, limit, errors that name the pack, events and logs."""

import logging
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
import torch._dynamo.utils

from torchtpu import events
from torchtpu.compile import passes, structure
from torchtpu.errors import GraphPassError
from torchtpu.plugins import registry
from torchtpu.plugins.pack import Pack
from torchtpu.testing import toy

RELU, EXP, NEG = (getattr(torch.ops.aten, name).default for name in ("relu", "exp", "neg"))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def run(fn, *arguments, grad=False, **packs):
    """The value of a compiled function with the toy pack and others, and the operators of its graphs."""
    seen = []

    def look(graph, _):
        seen.append([n.target for n in graph.graph.nodes if n.op == "call_function"])

    with registry.use({"toy": toy.pack, **packs}):
        moved = [a.to("tpu").requires_grad_(grad) for a in arguments]
        value = torch.compile(fn, backend="tpu", fullgraph=True, options={"debug_callback": look})(*moved)
        if grad:
            value.backward(torch.ones_like(value))
            return [value.detach().cpu(), *[m.grad.cpu() for m in moved]], seen
        return value.cpu(), seen


def swap(old, new, name="acme.swap", **order):
    """A pack whose pass puts one operator in the place of another."""
    pack = Pack(api="1.0")

    @pack.graph_pass(name, **order)
    def change(module):
        nodes = module.graph.find_nodes(op="call_function", target=old)
        for node in nodes:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(new, node.args))
            module.graph.erase_node(node)
        return bool(nodes)

    return pack


def twice(x):
    return torch.relu(torch.relu(x))


def test_the_toy_packs_pass_changes_the_graph():
    value, seen = run(twice, torch.tensor([-1.0, 2.0]))
    assert value.tolist() == [0, 2] and seen == [[RELU]]


def test_a_pass_may_add_operators_without_describing_them():
    value, seen = run(torch.neg, torch.tensor([0.0, 1.0]), acme=swap(NEG, EXP))
    assert seen == [[EXP]]
    torch.testing.assert_close(value, torch.tensor([0.0, 1.0]).exp())


def test_order():
    x = torch.tensor([-1.0, 2.0])
    first = swap(EXP, NEG, "acme.a", before=("acme.b",)), swap(NEG, RELU, "acme.b")
    assert run(torch.exp, x, one=first[0], two=first[1])[1] == [[RELU]]
    torch._dynamo.reset()
    last = swap(EXP, NEG, "acme.a", after=("acme.b",)), swap(NEG, RELU, "acme.b")
    assert run(torch.exp, x, one=last[0], two=last[1])[1] == [[NEG]]


def test_joint_stage_comes_before_the_graph_is_cut_in_two():
    kinds = []
    pack = Pack(api="1.0")

    @pack.graph_pass("acme.look", stage="joint")
    def look(module):
        kinds.append(sorted(n.name for n in module.graph.nodes if n.op == "placeholder"))
        return False

    (value, grad), seen = run(torch.relu, torch.tensor([-1.0, 2.0]), grad=True, acme=pack)
    assert value.tolist() == [0, 2] and grad.tolist() == [0, 1]
    assert kinds == [["primals_1", "tangents_1"]] and len(seen) == 2
    run(torch.relu, torch.ones(2), acme=pack)
    assert len(kinds) == 1  # inference has no such graph


def test_the_limit_stops_passes_one_by_one(monkeypatch):
    x = torch.tensor([-1.0, 2.0])
    with registry.use({"toy": toy.pack}):
        names = [item.name for item in passes.passes("aten")]
    assert names == ["torchtpu.batches", "torchtpu.noops", "torchtpu.unused", "toy.relus"]
    done = names.index("toy.relus")
    for most, found in ((done, [RELU, RELU]), (done + 1, [RELU])):
        monkeypatch.setattr(passes, "_runs", iter(range(1, 100)))
        monkeypatch.setenv("TORCHTPU_PASS_LIMIT", str(most))
        torch._dynamo.reset()
        value, seen = run(twice, x)
        assert value.tolist() == [0, 2] and seen == [found]
    monkeypatch.setenv("TORCHTPU_PASS_LIMIT", "some")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="TORCHTPU_PASS_LIMIT must be a whole number, not 'some'"):
        run(twice, x)


def _raises(module):
    raise KeyError("a cause")


def _second_output(module):
    node = next(n for n in module.graph.nodes if n.op == "output")
    node.args = ([*node.args[0], node.args[0][0]],)
    return True


def _dangling(module):
    node = next(n for n in module.graph.nodes if n.op == "call_function")
    node.args = (torch.fx.Graph().placeholder("elsewhere"),)
    return True


@pytest.mark.parametrize("change,why", [
    (_raises, "KeyError: 'a cause'"), (_second_output, "inputs or outputs"), (_dangling, "elsewhere"),
])  # fmt: skip
def test_a_failing_pass_is_named_with_its_pack(change, why):
    pack = Pack(api="1.0")
    pack.graph_pass("acme.broken")(change)
    with pytest.raises(Exception, match=f"graph pass 'acme.broken' of pack 'acme' .acme 0. failed on the inference graph.*{why}") as found:  # fmt: skip
        run(torch.relu, torch.ones(2), acme=pack)
    assert isinstance(found.value.inner_exception, GraphPassError)  # Dynamo's error carries ours


def test_no_operation_stays_in_the_graph():
    def same(x):
        y = torch.neg(x)
        return torch.exp(y.float().view(2, 2).expand(2, 2).clone()[0:2])

    x = torch.randn(2, 2)
    value, seen = run(same, x)
    torch.testing.assert_close(value, (-x).exp())
    assert seen == [[NEG, EXP]]


def test_what_is_returned_keeps_memory_of_its_own():
    def copies(x):
        y = torch.neg(x)
        return y.clone(), x.clone().view(4), y.to(torch.float32, copy=True)[0]

    with registry.use({"toy": toy.pack}):
        x = torch.ones(2, 2, device="tpu")
        a, b, c = torch.compile(copies, backend="tpu", fullgraph=True)(x)
        for t in (a, b, c):
            t.copy_(torch.full(t.shape, 7.0))
        assert x.cpu().tolist() == [[1, 1], [1, 1]]
        assert a.cpu().tolist() == [[7, 7], [7, 7]]


def test_a_copy_taken_before_a_write_has_the_old_value():
    def swap_in(x, y):
        old = x.clone()
        x.copy_(y)
        return torch.neg(old)

    with registry.use({"toy": toy.pack}):
        x, y = torch.ones(2, device="tpu"), torch.zeros(2, device="tpu")
        assert torch.compile(swap_in, backend="tpu", fullgraph=True)(x, y).tolist() == [-1, -1]
        assert x.tolist() == [0, 0]


def test_changes_are_events_and_runs_are_logged(caplog):
    seen = []
    events.listen(seen.append, ["pass"])
    try:
        with caplog.at_level(logging.INFO, "torchtpu.compile.passes"):
            run(twice, torch.ones(2))
    finally:
        events.leave(seen.append)
    assert [(e.name, e.source) for e in seen] == [("toy.relus", "aten")]
    assert seen[0].where.startswith(__file__) and seen[0].seconds > 0
    assert "pass toy.relus (aten) changed the inference graph" in caplog.text
    assert "pass torchtpu.unused (aten) left the inference graph" in caplog.text


def test_torch_logs_shows_them():
    code = """
import torch, torchtpu
torch.compile(lambda x: x + 1, backend="tpu")(torch.ones(2, device="tpu"))
"""
    environment = {**os.environ, "TORCH_LOGS": "torchtpu.compile", "TORCHTPU_PLATFORM": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "pass torchtpu.unused (aten)" in done.stderr, done.stderr[-2000:]


def test_products_keep_the_dimensions_of_their_batch():
    pack = Pack(api="1.0")

    @pack.lowering("aten::bmm")
    def bmm(self, mat2):
        assert self.ndim == 3
        return jnp.matmul(self, mat2)

    def attend(q, k):
        return torch.relu(q @ k.transpose(-1, -2))

    q, k = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)
    (value, *grads), seen = run(attend, q, k, grad=True, acme=pack)
    host = [t.clone().requires_grad_() for t in (q, k)]
    want = attend(*host)
    want.sum().backward()
    torch.testing.assert_close(
        [value, *grads], [want.detach(), *[t.grad for t in host]], rtol=1e-4, atol=1e-5
    )
    products = [[n for n in graph if n in (structure.batched, torch.ops.aten.bmm.default)] for graph in seen]
    assert products == [[structure.batched], [structure.batched] * 2]


def test_a_product_that_is_returned_with_its_batch_merged_stays():
    pack = Pack(api="1.0")
    pack.lowering("aten::bmm")(jnp.matmul)
    x = torch.randn(2, 3, 4)
    value, seen = run(lambda x: (x @ x.mT).view(2, 1, 3, 3), x, acme=pack)
    torch.testing.assert_close(value, (x @ x.mT)[:, None])
    assert torch.ops.aten.bmm.default in seen[0]


def test_sizes_that_vary_are_left_alone():
    pack = Pack(api="1.0")
    pack.lowering("aten::bmm")(jnp.matmul)
    with registry.use({"toy": toy.pack, "acme": pack}):
        fn = torch.compile(lambda x: torch.relu(x @ x.mT), backend="tpu", fullgraph=True, dynamic=True)
        for size in (3, 4):
            x = torch.randn(size, 2, size + 1, 5)
            torch.testing.assert_close(fn(x.to("tpu")).cpu(), torch.relu(x @ x.mT), rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

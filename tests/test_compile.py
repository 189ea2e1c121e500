"""torch.compile(backend="tpu"): forward and training equal CPU eager, in few programs, without recompiling."""

import copy
import logging

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from tests.models import mlp
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import torchtpu
from torchtpu.runtime import program


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def strict():
    """Programs run when they are called, whatever the default mode, so launches can be counted."""
    with torchtpu.mode("strict"):
        yield


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="tpu", fullgraph=True, **kwargs)


def close(got, want, atol=1e-5):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.detach().cpu(), w.detach(), atol=atol, rtol=1e-4)


def only_torchs_own_breaks():
    """Optimizer.step calls torch._dynamo.graph_break() around its one graph."""
    return all("User-inserted graph break" in reason for reason in counters["graph_break"])


class Counted:
    """Compilations and launches of a block."""

    def __enter__(self):
        self._start = program.compilations[0], program.launches[0]
        return self

    def __exit__(self, *exc):
        self.compiled = program.compilations[0] - self._start[0]
        self.launched = program.launches[0] - self._start[1]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
}


def pair():
    model = mlp()
    return model, copy.deepcopy(model).to("tpu"), torch.randn(4, 7)


def train(model, optimizer, loss, step, x):
    optimizer.zero_grad()
    value = loss(model, x)
    value.backward()
    step()
    return value


def squares(model, x):
    return model(x).float().pow(2).mean()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    host, device, x = pair()
    first, second = OPTIMIZERS[name](host.parameters()), OPTIMIZERS[name](device.parameters())
    step = torch.compile(second.step, backend="tpu")
    for _ in range(4):
        want = train(host, first, squares, first.step, x)
        close([train(device, second, squares, step, x.to("tpu"))], [want])
    close(device.parameters(), host.parameters())
    assert only_torchs_own_breaks()


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_whole_step_is_three_graphs_and_settles(mode):
    host, device, x = pair()
    first, second = (torch.optim.AdamW(m.parameters(), 0.01) for m in (host, device))
    moved = x.to("tpu")

    @torch.compile(backend="tpu")
    def run():
        return train(device, second, squares, second.step, moved).detach()

    with torchtpu.mode(mode):
        for _ in range(3):
            close([run()], [train(host, first, squares, first.step, x)])
        with Counted() as count:
            losses = [run() for _ in range(20)]
            values = [loss.item() for loss in losses]
    wanted = [train(host, first, squares, first.step, x).item() for _ in range(20)]
    torch.testing.assert_close(values, wanted, atol=1e-5, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] <= 3
    if mode == "strict":  # forward, the gradient's seed, backward, optimizer
        assert (count.compiled, count.launched) == (0, 4 * 20)


def test_steps_that_the_optimizer_counts_on_the_host_stay_there():
    _, device, x = pair()
    optimizer, moved = torch.optim.AdamW(device.parameters(), 0.01), x.to("tpu")
    loss, step = compiled(squares), torch.compile(optimizer.step, backend="tpu")
    with torchtpu.mode("fused"):
        for _ in range(3):
            train(device, optimizer, loss, step, moved)
        with torchtpu.explain() as report:
            train(device, optimizer, loss, step, moved)
            # to read the count would wait for the device
            assert {f.reason for f in report.flushes} <= {"the step ended, or memory is short"}
            torch.tpu.synchronize()
    state = optimizer.state.values()
    assert {(s["step"].device.type, s["step"].item()) for s in state} == {("cpu", 4.0)}


def test_cpu_inputs_are_updated_after_they_were_read():
    def count(x, seen):
        before = x * seen  # the old value, also where the new one is computed first
        seen.add_(1)
        return before + seen, seen.clone()

    host, device, x = torch.tensor(2.0), torch.tensor(2.0), torch.randn(3)
    fn = compiled(count)
    for _ in range(2):
        close(fn(x.to("tpu"), device), count(x, host))
        assert device.equal(host)


def test_fused_mode_joins_the_graphs_of_a_step():
    _, device, x = pair()
    optimizer, moved = torch.optim.SGD(device.parameters(), 0.01), x.to("tpu")
    run = torch.compile(
        lambda: train(device, optimizer, squares, optimizer.step, moved).detach(), backend="tpu"
    )
    with torchtpu.mode("fused"):
        for _ in range(3):
            run().item()
        with Counted() as count:
            for _ in range(5):
                run().item()
    assert (count.compiled, count.launched) == (0, 5)


@pytest.mark.usefixtures("strict")
def test_parameters_are_updated_in_their_memory():
    weight = torch.zeros(4, 4, device="tpu")
    add = compiled(lambda w: w.add_(1))
    add(weight)
    old = weight.untyped_storage().buffer
    add(weight)
    assert old.is_deleted()  # given to the program
    kept = torchtpu.to_jax(weight)  # somebody else holds the memory now
    add(weight)
    assert not kept.is_deleted() and float(kept[0, 0]) == 2 and weight.cpu()[0, 0] == 3


def test_dropout_draws_what_strict_mode_draws():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.3)).to("tpu")
    x = torch.randn(4, 8, device="tpu")

    def run(fn):
        torch.manual_seed(3)
        found = []
        for _ in range(3):
            model.zero_grad()
            y = fn(x)
            y.sum().backward()
            found += [y.detach().cpu(), model[0].weight.grad.cpu(), torch.rand(3, device="tpu").cpu()]
        return found

    close(run(compiled(model)), run(model), atol=1e-6)


def test_random_operators_draw_what_strict_mode_draws():
    def draw(x):
        p = torch.rand(3, device="tpu")
        return [
            p, torch.randn_like(x), torch.randint(0, 10, (5,), device="tpu"), torch.bernoulli(p),
            torch.empty(4, device="tpu").uniform_(1, 2), torch.randperm(7, device="tpu"), torch.multinomial(p, 2),
        ]  # fmt: skip

    x = torch.zeros(2, 2, device="tpu")
    torch.manual_seed(5)
    want = draw(x)
    state = torch.tpu.get_rng_state()
    torch.manual_seed(5)
    got = compiled(draw)(x)
    assert all(g.cpu().equal(w.cpu()) for g, w in zip(got, want, strict=True))
    assert torch.tpu.get_rng_state().equal(state)


def test_checkpoint_draws_the_same_again():
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)).to("tpu")
    x = torch.randn(4, 8, device="tpu", requires_grad=True)

    def gradient(fn):
        torch.manual_seed(3)
        x.grad = None
        fn(x).sum().backward()
        return x.grad.cpu(), torch.rand(1, device="tpu").cpu()

    def again(v):
        return checkpoint(block, v, use_reentrant=False)

    want = gradient(block)
    close(gradient(again), want)
    close(gradient(compiled(again)), want)


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to("tpu")

    def run(x):
        with torch.autocast("tpu", torch.bfloat16):
            return model(x), torch.softmax(model(x), -1)

    x = torch.randn(4, 8, device="tpu")
    got, want = compiled(run)(x), run(x)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    close([t.float() for t in got], [t.float().cpu() for t in want], atol=2e-2)


def test_inference_mode():
    model, x = nn.Linear(3, 3).to("tpu"), torch.randn(2, 3, device="tpu")
    with torch.inference_mode():
        y = compiled(model)(x)
    assert y.is_inference()
    close([y], [model(x).cpu()])


def test_mutation_of_inputs_through_views():
    def change(x, y):
        x.add_(1)
        x[0].mul_(2)
        x.t()[1].copy_(y)
        x[1:].add_(x[:-1].clone())  # overlapping slices of one buffer
        return x * 2, y.view(-1)[:2]

    host = [torch.randn(3, 3), torch.randn(3)]
    device = [t.to("tpu") for t in host]
    fn = compiled(change)
    for _ in range(3):
        close(fn(*device), change(*host))
        close(device, host)


@pytest.mark.usefixtures("strict")
def test_strided_inputs_are_read_and_written_in_the_program():
    host = torch.randn(4, 6)
    device = host.to("tpu")

    def triple(x):
        x.mul_(3)
        return x.sum()

    fn = compiled(triple)
    fn(device[0:2].t())
    triple(host[0:2].t())
    with Counted() as count:
        fn(device[1:3].t())
    triple(host[1:3].t())
    close([device], [host])
    assert count.launched == 1


def test_outputs_alias_as_in_eager_mode():
    def views(x):
        y = x + 1
        return y, y.view(-1), y[1:], x.t()

    x = torch.randn(3, 4, device="tpu")
    y, flat, rows, turned = compiled(views)(x)
    flat[0] = 100.0
    rows[0, 0] = 7
    x[0, 0] = 5
    assert y.cpu()[0, 0] == 100 and y.cpu()[1, 0] == 7 and flat.cpu()[4] == 7
    assert turned.stride() == (1, 4) and turned.cpu()[0, 0] == 5


def test_inputs_that_share_memory():
    def shift(x, y):
        x.add_(1)
        return y * 2

    host, device = torch.zeros(6), torch.zeros(6, device="tpu")
    close([compiled(shift)(device[:4], device[2:])], [shift(host[:4], host[2:])])
    close([device], [host])


def test_view_operators_and_strides():
    def views(x):
        c = torch.view_as_complex(x.reshape(3, 2, 2))
        return [
            c.conj() * 2, torch.view_as_real(c * 1j), x.unfold(1, 2, 1) * 1, x.diagonal() * 2, x.t() + 1,
            x.as_strided((2, 2), (4, 1), 1) * 3, x.view(torch.int32) + 0, x[None].expand(2, 3, 4) * 1,
            x.split(2, 1)[1] + 1, x.unbind(0)[2] * 2, x.narrow(1, 1, 2) * 1, x.movedim(0, 1) * 2, x[:, ::2] * 2,
        ]  # fmt: skip

    x = torch.randn(3, 4)
    got, want = compiled(views)(x.to("tpu")), views(x)
    close(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]


def test_dynamic_shapes_compile_once_in_torch():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    device = copy.deepcopy(model).to("tpu")

    def run(m, x):
        return (m(x) * x.shape[0]).sum(0) + torch.arange(x.shape[0], device=x.device).sum()

    fn = compiled(run, dynamic=True)
    for size in (5, 6, 7, 5, 6):
        x = torch.randn(size, 3)
        with Counted() as count:
            y = fn(device, x.to("tpu"))
            y.sum().backward()
        close([y], [run(model, x)], atol=1e-4)
    assert count.compiled == 0 and counters["stats"]["unique_graphs"] == 1


def test_places_to_cut_at_in_a_cpu_tensor():
    x = torch.randn(5, 3)
    fn = compiled(lambda x, at: torch.tensor_split(x, at))
    for at in (torch.tensor([1, 3]), torch.tensor([2, 2])):
        close(fn(x.to("tpu"), at), torch.tensor_split(x, at))


def test_numbers_that_vary_compile_nothing():
    fn = compiled(lambda x, s: x * s + torch.sin(x))
    x = torch.randn(3)
    for i in range(6):
        with Counted() as count:
            y = fn(x.to("tpu"), 0.5 + i)
        close([y], [x * (0.5 + i) + torch.sin(x)])
    assert count.compiled == 0


def test_learning_rate_in_a_tensor_compiles_nothing():
    model = nn.Linear(4, 4).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1, device="tpu"), capturable=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step, x = torch.compile(optimizer.step, backend="tpu"), torch.randn(3, 4, device="tpu")
    for _ in range(5):
        optimizer.zero_grad()
        model(x).sum().backward()
        with Counted() as count:
            step()
        schedule.step()
    assert count.compiled == 0


@pytest.mark.usefixtures("strict")
def test_control_flow_is_part_of_the_program():
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def run(x):
        y = torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))
        _, z = while_loop(
            lambda i, v: i < 5, lambda i, v: (i + 1, v * 2), (torch.zeros_like(x[0], dtype=torch.int64), y)
        )
        last, all_ = scan(lambda c, v: (c + v, c * v), torch.ones_like(z[0]), z, dim=0)
        return y, z, last, all_

    fn = compiled(run)
    for x in (torch.ones(3), -torch.ones(3)):
        with Counted() as count:
            got = fn(x.to("tpu"))
        close(got, run(x))
    assert count.launched == 1


def test_operator_without_a_lowering_runs_between_two_programs():
    with torch.library._scoped_library("tests_compile", "DEF") as library:
        library.define("cube(Tensor x) -> Tensor")
        library.impl("cube", lambda x: x**3, "CPU")
        torch.library.register_fake("tests_compile::cube", torch.empty_like, lib=library)

        def run(x):
            return torch.ops.tests_compile.cube(x @ x.t()).abs().sum() + x.sum()

        x = torch.randn(3, 3)
        torchtpu.reset_fallbacks()
        with pytest.warns(UserWarning, match="tests_compile::cube"):
            got = compiled(run)(x.to("tpu"))
        close([got], [run(x)], atol=1e-4)
        assert torchtpu.fallbacks() == {"tests_compile::cube": 1}


def test_cpu_tensors_in_the_graph():
    def run(x, index, count):
        count.add_(1)
        return x[index] + torch.tensor([1.0, 2.0, 3.0]).to(x.device), (x * 2).cpu() + count

    x, index = torch.randn(4, 3), torch.tensor([1, 2])
    host, device = torch.zeros(3), torch.zeros(3)
    got, want = compiled(run)(x.to("tpu"), index, device), run(x, index, host)
    close(got, want)
    assert got[1].device.type == "cpu" and device.equal(host)


@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
def test_attention(kind):
    mask = torch.rand(6, 6) > 0.3
    mask[:, 0] = True

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(
            q, k, v, mask if kind == "mask" else None, is_causal=kind == "causal"
        )

    host = [torch.randn(2, 2, 6, 8, requires_grad=True) for _ in range(3)]
    device = [t.detach().to("tpu").requires_grad_() for t in host]
    got, want = compiled(attend)(*device, mask.to("tpu")), attend(*host, mask)
    got.sum().backward()
    want.sum().backward()
    close([got, *[t.grad for t in device]], [want, *[t.grad for t in host]])


@pytest.mark.usefixtures("strict")
def test_options_and_artifacts():
    seen = []
    fn = torch.compile(
        lambda x: x.sin() + 1,
        backend="tpu",
        options={"debug_callback": lambda graph, inputs: seen.append((graph, inputs))},
    )
    fn(torch.ones(3, device="tpu"))
    assert len(seen) == 1 and "sin" in seen[0][0].code
    made = torchtpu.compile.last()
    assert made.kind == "inference" and "aten.sin" in made.graph and "sin" in made.jaxpr
    assert "stablehlo.sine" in made.stablehlo and "HloModule" in made.hlo
    with pytest.raises(Exception, match="unknown options.*nonsense"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"nonsense": 1})(torch.ones(3, device="tpu"))


@pytest.mark.parametrize("options", [
    {"xla_options": {"xla_no_such_option": True}}, {"xla_no_such_option": True},
])  # fmt: skip
def test_xla_options_reach_the_compiler(options):
    with pytest.raises(Exception, match="xla_no_such_option"):
        torch.compile(lambda x: x + 1, backend="tpu", options=options)(torch.ones(3, device="tpu"))


@pytest.mark.usefixtures("strict")
def test_artifacts_are_written_and_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHTPU_DUMP", str(tmp_path / "new"))
    x = torch.ones(3, device="tpu", requires_grad=True)
    with caplog.at_level(logging.DEBUG, "torchtpu.compile.artifacts"):
        compiled(lambda x: x.sin().sum())(x).backward()
    files = {path.name.split("-", 2)[2]: path.read_text() for path in (tmp_path / "new").iterdir()}
    endings = ("graph.py", "jaxpr.txt", "stablehlo.mlir", "hlo.txt")
    assert files.keys() == {f"{kind}.{end}" for kind in ("forward", "backward") for end in endings}
    assert "aten.sin" in files["forward.graph.py"] and "cos" in files["backward.jaxpr.txt"]
    assert "stablehlo.cosine" in files["backward.stablehlo.mlir"] and "HloModule" in files["forward.hlo.txt"]
    assert all(text in caplog.text for text in files.values())
    monkeypatch.delenv("TORCHTPU_DUMP")
    compiled(lambda x: x.cos())(x.detach())
    assert len(list((tmp_path / "new").iterdir())) == len(files)

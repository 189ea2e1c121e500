"""Fused mode: what is compiled and launched, what stays alive, and the same values as on the CPU."""

import copy
import gc
import os
import sys
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchtpu
from torchtpu.modes import fused
from torchtpu.runtime import mappings, program
from torchtpu.tensors.pending import FAILED, Pending

same = torch.testing.assert_close


@pytest.fixture(autouse=True)
def fused_mode():
    torch.tpu.synchronize()  # nothing of an earlier test is pending
    with torchtpu.mode("fused"):
        yield


class Counted:
    """Compilations and launches of a block."""

    def __enter__(self):
        self.before = program.compilations[0], program.launches[0]
        return self

    def __exit__(self, *_):
        self.compiled = program.compilations[0] - self.before[0]
        self.launched = program.launches[0] - self.before[1]


def pair(*shape, dtype=torch.float32):
    host = torch.randn(*shape, dtype=dtype)
    return host, host.to("tpu")


def test_a_chain_is_one_program_and_compiles_once():
    host, x = pair(8, 8)
    for round_ in range(3):
        with Counted() as count:
            y, want = x, host
            for _ in range(20):
                y, want = torch.tanh(y * 1.5) + x, torch.tanh(want * 1.5) + host
            same(y.cpu(), want)
        assert count.launched == 1
        assert count.compiled == (round_ == 0)


def test_numbers_that_vary_do_not_compile():
    host, x = pair(8)
    for i in range(5):
        with Counted() as count:
            same((x * (i + 0.5) + i).cpu(), host * (i + 0.5) + i)
        assert count.compiled == (i == 0)
    same((x * 0.0).cpu(), host * 0.0)
    same(torch.signbit(torch.ones(2, device="tpu") * -0.0).cpu(), torch.tensor([True, True]))
    same(torch.signbit(torch.ones(2, device="tpu") * 0.0).cpu(), torch.tensor([False, False]))


def test_only_what_is_held_becomes_an_output():
    _, x = pair(16)
    held = [torch.sin(x)]
    for _ in range(10):
        held[0] = torch.cos(held[0])  # each but the last is dropped
    values = fused.graph.values
    torch.tpu.synchronize()
    assert sum(v.index == -1 for v in values) == 1


def test_memory_of_overwritten_tensors_is_reused():
    host, x = pair(64)
    x = x + 0  # memory of the device's own, not the host's
    x.cpu()
    old = x.untyped_storage().buffer
    old = getattr(old, "value", old)
    pointer = old.unsafe_buffer_pointer()
    del old
    x.mul_(2.0).add_(1.0)
    same(x.cpu(), host * 2 + 1)
    new = x.untyped_storage().buffer
    assert getattr(new, "value", new).unsafe_buffer_pointer() == pointer


def test_an_array_that_somebody_holds_is_kept():
    host, x = pair(64)
    array = torchtpu.to_jax(x)
    x.add_(1.0)
    same(x.cpu(), host + 1)
    same(torch.from_numpy(__import__("numpy").array(array)), host)


def train(device, mode, steps, read, foreach=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    with torchtpu.mode(mode):
        model, x, y = model.to(device), x.to(device), y.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=foreach)
        losses, counts = [], []
        for _ in range(steps):
            with Counted() as count:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item() if read else loss.detach())
            counts.append(count)
        return [float(v) for v in losses], counts, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("foreach", [True, False])
def test_a_training_step_is_one_program(foreach):
    losses, counts, weights = train("tpu", "fused", 8, True, foreach)
    want, _, wanted = train("cpu", "strict", 8, True, foreach)
    same(losses, want, rtol=1e-4, atol=1e-5)
    same(weights, wanted, rtol=1e-4, atol=1e-5)
    assert [c.launched for c in counts[1:]] == [1] * 7
    assert sum(c.compiled for c in counts[2:]) == 0


def test_a_step_that_nobody_reads_is_run_at_its_end():
    losses, counts, weights = train("tpu", "fused", 12, False)
    want, _, wanted = train("cpu", "strict", 12, False)
    same(losses, want, rtol=1e-4, atol=1e-5)
    same(weights, wanted, rtol=1e-4, atol=1e-5)
    assert [c.launched for c in counts[2:]] == [1] * 10
    assert sum(c.compiled for c in counts[4:]) == 0


def turn(x, w):
    x = torch.tanh(x @ w)
    return x / (1 + x.norm())


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_a_loop_without_a_read_is_bounded_and_stops_compiling(shift):
    host, x = pair(4, 4)
    weight, w = pair(4, 4)
    for _ in range(shift):  # the phase at which the recording of the loop begins
        x, host = x + 1, host + 1
    for _ in range(400):
        x, host = turn(x, w), turn(host, weight)
    with Counted() as count:
        longest = 0
        for _ in range(600):
            x, host = turn(x, w), turn(host, weight)
            longest = max(longest, len(fused.graph.values))
    assert count.compiled == 0
    assert count.launched > 5
    assert longest <= 512
    same(x.cpu(), host, rtol=1e-3, atol=1e-4)


def test_a_long_stream_is_cut_by_its_content():
    names = [torch.sin, torch.cos, torch.tanh, torch.neg, torch.abs, torch.sigmoid]
    period = [names[i] for i in torch.randint(6, (1500,))]
    host, x = pair(4)
    total = []
    for _ in range(16):
        with Counted() as count:
            for fn in period:
                x, host = fn(x), fn(host)
            assert len(fused.graph.values) <= 4096
        total.append(count.compiled)
    assert sum(total[8:]) == 0
    same(x.cpu(), host, rtol=1e-4, atol=1e-5)


def test_a_loop_that_ends_goes_on_right():
    host, x = pair(4)
    for _ in range(500):
        x, host = x * 0.99 + 0.01, host * 0.99 + 0.01
    for _ in range(3):
        x, host = x.sin() - 1, host.sin() - 1
    same(x.cpu(), host, rtol=1e-4, atol=1e-5)


def test_the_same_random_numbers_as_strict():
    def draws():
        torch.tpu.manual_seed(7)
        x = torch.randn(5, device="tpu")
        y = nn.functional.dropout(torch.ones(50, device="tpu"), 0.5)
        z = torch.empty(4, device="tpu").uniform_()
        return [t.cpu() for t in (x, y, z)], torch.tpu.get_rng_state()

    ours = draws()
    with torchtpu.mode("strict"):
        assert str(draws()) == str(ours)


def test_an_error_in_the_middle_loses_nothing():
    host, x = pair(3)
    y = x * 2
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        y + torch.ones(4, device="tpu")
    y += 1
    same(y.cpu(), host * 2 + 1)


def test_another_thread_may_overwrite_an_input():
    host, x = pair(1000)
    y = x + 1

    def overwrite():
        with torchtpu.mode("strict"):
            for _ in range(3):
                x.mul_(3.0)

    worker = threading.Thread(target=overwrite)
    worker.start()
    worker.join()
    same(y.cpu(), host + 1)
    same(x.cpu(), host * 27)


def test_threads_share_the_graph():
    host, x = pair(16)
    out, wrong = {}, []

    def work(k):
        try:
            with torchtpu.mode("fused"):
                y = x
                for i in range(200):
                    y = y * 1.01 + k
                    if i % 37 == 0:
                        y.cpu()
                out[k] = y.cpu()
        except Exception as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    for k in range(4):
        want = host
        for _ in range(200):
            want = want * 1.01 + k
        same(out[k], want, rtol=1e-4, atol=1e-4)


def test_switching_modes_with_work_pending():
    host, x = pair(8)
    y = x + 1
    with torchtpu.mode("strict"):
        z = y * 2
        with torchtpu.mode("debug"):
            z = z + y
    w = z - x
    same(w.cpu(), (host + 1) * 3 - host)


def test_autograd_with_work_pending():
    host, x = pair(5, dtype=torch.float64)
    seen = []

    def grads(t):
        t = t.detach().clone().requires_grad_()
        y = (t.sin() * t).exp()
        y.register_hook(lambda g: seen.append(g) or g * 2)
        (first,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), t, retain_graph=True)
        (again,) = torch.autograd.grad(first.sum(), t)
        return first.detach(), second, again

    for got, want in zip(grads(x), grads(host), strict=True):
        same(got.cpu(), want)
    same(seen[0].cpu(), seen[len(seen) // 2])


def test_copies_data_and_set_with_work_pending():
    host, x = pair(6)
    y = x * 2
    twin = copy.deepcopy(y)
    y.data.add_(1)
    z = torch.empty(0, device="tpu").set_(y)
    z.mul_(3)
    same(twin.cpu(), host * 2)
    same(y.cpu(), (host * 2 + 1) * 3)
    with torch.inference_mode():
        same((y + x).cpu(), (host * 2 + 1) * 3 + host)


def test_memory_does_not_grow():
    _, x = pair(32)
    count = []
    for i in range(60):
        x = torch.tanh(x * 1.1)
        if i % 3 == 0:
            x.sum().item()
        if i >= 40:
            gc.collect()
            count.append(len(fused.client.device().client.live_arrays()))
    assert max(count) - min(count) <= 3


def test_short_memory_flushes(monkeypatch):
    """Recorded work keeps its inputs alive, so it runs before these exceed the budget."""
    monkeypatch.setattr(fused.client, "memory_budget", lambda: 10 * 4096)

    def turns(state, want, kept):
        for _ in range(40):
            host = torch.randn(1024)
            state, want = state * 0.5 + host.to("tpu"), want * 0.5 + host
            kept.append(sum(a.nbytes >= 4096 for a in fused.client.device().client.live_arrays()))
        same(state.cpu(), want)

    zeros = torch.zeros(1024, device="tpu"), torch.zeros(1024)
    before = sum(a.nbytes >= 4096 for a in fused.client.device().client.live_arrays())
    turns(*zeros, [])
    turns(*zeros, [])  # the first began with the zeros in the graph
    kept = []
    with torchtpu.explain() as report, Counted() as count:
        turns(*zeros, kept)
    assert max(kept) - before <= 14
    assert count.compiled == 0 and 4 <= count.launched <= 6
    assert {e.reason for e in report.flushes} >= {"the step ended, or memory is short"}


def test_a_forked_child_is_told():
    (torch.ones(2, device="tpu") + 1).cpu()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (torch.ones(2, device="tpu") + 1).cpu()
            os.write(write, b"no error")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"forked subprocess" in os.read(read, 1000)


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "mul", "view_add", "slice_mul", "transpose", "copy", "where", "sum", "read", "drop"]),
              st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40,
)  # fmt: skip


def act(tensors, name, i, j):
    """One step on a list of 4x4 tensors, in place where the name says so."""
    a, b = tensors[i], tensors[j]
    if name == "add":
        tensors[i] = a + b * 0.5
    elif name == "mul":
        a.mul_(b.tanh())
    elif name == "view_add":
        a.view(16)[4:12].add_(b.reshape(16)[:8].clone())
    elif name == "slice_mul":
        a[1:3, ::2].mul_(0.5)
    elif name == "transpose":
        tensors[i] = b.t()
    elif name == "copy":
        a.t().copy_(b.clone())
    elif name == "where":
        tensors[i] = torch.where(a > 0, a, b)
    elif name == "sum":
        tensors[i] = a + b.sum(0, keepdim=True).tanh()
    elif name == "read":
        return float(a.sum().tanh())
    else:
        tensors[i] = torch.ones_like(a)
    return None


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_any_program_gives_the_cpu_s_values(steps):
    host = [torch.arange(16.0).sin().reshape(4, 4).contiguous() * (k + 1) for k in range(4)]
    ours = [t.to("tpu") for t in host]
    for name, i, j in steps:
        if name == "view_add" and not host[i].is_contiguous():
            continue
        same(act(ours, name, i, j), act(host, name, i, j), rtol=1e-4, atol=1e-4)
    for got, want in zip(ours, host, strict=True):
        same(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_equal_layers_are_not_a_loop():
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.Tanh())]).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counts = []
    for _ in range(5):
        with Counted() as count:
            optimizer.zero_grad()
            model(torch.ones(2, 8, device="tpu")).sum().backward()
            assert len(fused.graph.values) > 300
            optimizer.step()
        counts.append(count.launched)
    assert counts[1:] == [1] * 4


@pytest.mark.skipif(not mappings.count(), reason="the system does not tell of mappings")
def test_programs_are_forgotten_before_memory_mappings_run_out(monkeypatch):
    start = mappings.count()
    monkeypatch.setattr(mappings, "_limit", lambda: start + 200)
    monkeypatch.setattr(mappings, "_wait", [0])
    for size in range(31, 71):
        x = torch.ones(size, 4, device="tpu")
        same((x @ x.t()).softmax(-1).sum(0).cumsum(0).cpu()[-1], torch.tensor(float(size)), rtol=1e-4, atol=0)
    assert mappings.count() < start + 1000  # of some 1800 for all; looked at after every eighth program


def test_printing_is_not_told_as_a_line_that_keeps_compiling():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(3, 9):
            assert repr((torch.rand(size, 3).to("tpu") - 0.5) * 1000).endswith("device='tpu:0')")


def test_a_foreach_of_one_tensor():
    host, x = pair(3)
    for _ in range(2):
        torch._foreach_copy_([x], [x * 2])
        torch._foreach_copy_([host], [host * 2])
    same(x.cpu(), host)
    weights = [nn.Parameter(t) for t in pair(4)]
    for weight in weights:
        optimizer = torch.optim.Rprop([weight], foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    same(weights[1].detach().cpu(), weights[0].detach())


@pytest.mark.parametrize("others", ["sizes", "a host mask", "a failed value"])
def test_a_call_that_is_not_recorded_leaves_no_trace(others):
    """The next call's program depends on its own arguments' layouts, not on when they were first seen."""
    for size in (2, 3, 5):
        host, x = pair(size)
        if others == "sizes":
            with pytest.raises(RuntimeError, match="The size of tensor a"):
                x + pair(size + 2)[1]
        elif others == "a host mask":
            same(x[host > 0].cpu(), host[host > 0])
        else:
            bad = torch.zeros(size, device="tpu")
            bad.untyped_storage().buffer = broken = Pending(FAILED)
            broken.value = ValueError("lost")
            with pytest.raises(ValueError, match="lost"):
                torch.addcmul(x, x, bad)
        assert not fused.graph.inputs
        same((-x).cpu(), -host)


@pytest.mark.parametrize("stage", ["compile", "run", "ran", "donated"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_interrupted_flush(monkeypatch, stage, kind):
    """Ctrl-C loses nothing that can be computed again; a tensor without a value says so; others go on."""
    host, x = pair(40 + (kind is ValueError))  # a program that nobody has compiled
    other = x + 0
    other.cpu()
    y = (x if stage != "donated" else other) * 3
    del other
    run = fused.fused_program.FusedProgram.run

    def interrupted(*args):
        if stage in ("ran", "donated"):
            run(*args)
        raise kind("now")

    with monkeypatch.context() as patch:
        if stage == "compile":
            patch.setattr(fused.fused_program, "build", interrupted)
        else:
            patch.setattr(fused.fused_program.FusedProgram, "run", interrupted)
        with pytest.raises(kind, match="now"):
            y.cpu()
    same((x + 1).cpu(), host + 1)
    if stage != "donated" and kind is KeyboardInterrupt:
        same(y.cpu(), host * 3)
    else:
        with pytest.raises((RuntimeError, ValueError), match="interrupted|now"):
            y + 1
    same((x + 2).cpu(), host + 2)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_interrupted_piece_of_a_loop(monkeypatch, kind):
    host, x = pair(4)
    first = x

    def interrupted(*_):
        raise kind("now")

    with monkeypatch.context() as patch:
        patch.setattr(fused.fused_program, "build", interrupted)
        with pytest.raises(kind, match="now"):
            for _ in range(5000):
                x, host = torch.cos(x) * 0.7, torch.cos(host) * 0.7
                before = x, host
    x, host = before
    if kind is KeyboardInterrupt:
        same(x.cpu(), host)
    else:
        with pytest.raises(ValueError, match="now"):
            x.cpu()
    same((first + 1).cpu() - 1, first.cpu(), atol=1e-6, rtol=0)


def test_ctrl_c_at_any_line_of_the_recording():
    """Whatever the line, the operator counts wholly or not at all."""
    seen = 0
    for stop in range(1, 400):
        host, x = pair(3)
        y = x * 2
        lines = 0

        def trace(frame, event, _, stop=stop):
            nonlocal lines
            if "torchtpu/modes" not in frame.f_code.co_filename:
                return None
            if event == "line":
                lines += 1
                if lines == stop:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            z = y + x
            z = torch.addcmul(z, y, x, value=0.5).t()
            z, _ = z.max(0)
        except KeyboardInterrupt:
            seen += 1
            z = None
        finally:
            sys.settrace(None)
            # a trace raises on the way out of a `with` too, where no signal can
            while fused.graph.lock._is_owned():
                fused.graph.lock.release()
        same((y - 1).cpu(), host * 2 - 1)
        same((x - y).cpu(), -host)
        if z is not None:
            break
    assert seen > 20

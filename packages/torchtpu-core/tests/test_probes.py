"""Probes of packs get the events that they asked for, and cost nothing where nobody asked."""

import dataclasses
import warnings

import pytest
import torch

import torchtpu
from torchtpu import events
from torchtpu.plugins import CallSpec, Pack, Probe, registry, selection
from torchtpu.testing import toy


def pack_with(handle, *kinds):
    pack = Pack(api="1.0")
    pack.probes.append(Probe(events=frozenset(kinds), handle=handle))
    return pack


def use(**packs):
    quiet = Pack(api="1.0")
    for name in vars(quiet):
        setattr(quiet, name, [] if name == "probes" else getattr(toy.pack, name))
    return registry.use({"toy": quiet, **packs})


@pytest.fixture(autouse=True)
def started():
    torch.empty(0, device="tpu")


def fresh(size, f=torch.exp):
    """A program that no other test has compiled; the shapes of tests differ."""
    return f(torch.ones(size, device="tpu")).cpu()


def test_a_probe_gets_what_it_asked_for_and_nothing_else():
    got, other = [], []
    with use(a=pack_with(got.append, "compile"), b=pack_with(other.append, "flush")), torchtpu.mode("strict"):
        fresh(301)
    assert {e.kind for e in got} == {"compile"} and "aten_exp" in [e.name for e in got]
    assert got[0].where.startswith(__file__) and got[0].source in ("compiler", "disk") and got[0].seconds > 0
    assert not other


def test_flushes_and_fallbacks_are_told():
    got = []
    torchtpu.reset_fallbacks()
    with use(a=pack_with(got.append, "flush", "fallback")), torchtpu.mode("fused"):
        fresh(302)
        with pytest.warns(UserWarning, match="runs on the CPU"):
            fresh(303, torch.special.bessel_j0)
    kinds = {e.kind: e for e in got}
    assert set(kinds) == {"flush", "fallback"}
    # without lowerings the call comes as its out= form
    assert kinds["fallback"].name.removesuffix(".out") == "aten::special_bessel_j0"
    assert kinds["fallback"].source == "cpu"
    assert kinds["flush"].reason == "the host reads it"


def test_choices_and_failures_are_told():
    got = []
    call = CallSpec(op="toy::softsign", args={}, target="cpu")
    with use(a=pack_with(got.append, "choice", "failure")):
        (kernel,) = registry.registry().kernels["toy::softsign"]
        selection.choose(call, [kernel])
        selection.failed(kernel, ValueError("too large"))
        selection.forget()
    assert [(e.kind, e.name, e.source) for e in got] == [
        ("choice", "toy::softsign", "lowering"), ("failure", "toy::softsign", "toy.tiled"),
    ]  # fmt: skip
    assert "not for cpu" in got[0].reason and got[1].reason == "ValueError: too large"


def test_a_raising_probe_is_told_once_and_left_out():
    got = []

    def bad(event):
        raise KeyError("boom")

    with use(a=pack_with(bad, "compile"), b=pack_with(got.append, "compile")):
        with pytest.warns(UserWarning, match=r"a probe of a 0 raised KeyError: 'boom' \(event 'compile'"):
            fresh(304)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fresh(305)
    assert len(got) >= 2


def test_a_probe_may_use_the_device():
    got = []

    def handle(event):
        got.append(event.name)
        fresh(306 + len(got), torch.neg)  # compiles: no event for the probe itself

    with use(a=pack_with(handle, "compile")):
        fresh(320)
    assert got and "aten_neg" not in got


def test_nobody_listens_to_what_nobody_asked_for():
    with use():
        assert not events.handlers
    with use(a=pack_with(print, "fallback")):
        assert set(events.handlers) == {"fallback"}  # no flush or compilation makes an event
    with use():
        assert not events.handlers


def test_handlers_come_and_go():
    seen = []
    event = events.Event(kind="pass", name="x", where="y", source="z", seconds=0.0)
    events.listen(seen.append, ["pass", "of the future"])
    events.emit(event)
    events.leave(seen.append)
    events.emit(event)
    events.leave(seen.append)
    assert seen == [event] and "pass" not in events.handlers
    assert [f.name for f in dataclasses.fields(event)][:2] == ["kind", "name"]


def test_explain_says_each_kind():
    with torchtpu.explain() as report:
        for kind in events.KINDS:
            events.emit(
                events.Event(kind=kind, name="it", where="here:1", source="s", seconds=0.0, reason="r")
            )
    assert len(str(report).splitlines()) == 1 + len(events.KINDS)

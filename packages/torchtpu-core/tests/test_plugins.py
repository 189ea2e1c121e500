"""Packs: loaded one by one, refused with a sentence, never fatal unless required."""

import pytest
from click.testing import CliRunner

from torchtpu import cli
from torchtpu.errors import PackApiError, PackError
from torchtpu.plugins import Lowering, Pack, discovery, registry
from torchtpu.plugins.records import GraphPass


class Dist:
    name, version = "acme", "1.2"

    def read_text(self, name):
        return "x"


class Point:
    """An entry point that gives ``value`` or raises it."""

    dist = Dist()
    group = discovery.GROUP

    def __init__(self, name, value, group=None):
        self.name, self.value, self._value = name, "m:o", value
        self.group = group or self.group

    def load(self):
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value


@pytest.fixture(autouse=True)
def _lenient(monkeypatch):
    monkeypatch.setenv("TORCHTPU_STRICT_PACKS", "0")
    monkeypatch.delenv("TORCHTPU_PACKS", raising=False)


def good(op="aten::relu"):
    pack = Pack(api="1.0")

    @pack.lowering(op)
    def lowering(self):
        """Nothing."""
        return self

    return pack


def test_broken_packs_are_reported_and_skipped():
    newer = type("M", (), {"TORCHTPU_API": "1.9"})()
    points = [
        Point("fine", good()),
        Point("dead", ImportError("no such thing")),
        Point("exits", SystemExit(3)),
        Point("newer", newer),
        Point("future", good(), group="torchtpu.packs.v2"),
    ]
    with pytest.warns(UserWarning, match="acme 1.2"):
        found = {s.name: s for s in discovery.scan(points)}
    assert {n: s.state for n, s in found.items()} == {
        "fine": "loaded", "dead": "broken", "exits": "broken", "newer": "refused", "future": "refused",
    }  # fmt: skip
    assert "no such thing" in found["dead"].reason and found["dead"].remedy
    assert "written for pack API 1.9" in found["newer"].reason
    assert list(registry.build(list(found.values())).lowerings) == ["aten::relu"]


def test_required_and_strict_packs_raise(monkeypatch):
    monkeypatch.setenv("TORCHTPU_PACKS", "dead")
    with pytest.raises(PackError, match="boom"):
        discovery.scan([Point("dead", ValueError("boom"))])
    with pytest.raises(PackError, match="not installed"):
        discovery.scan([])
    monkeypatch.delenv("TORCHTPU_PACKS")
    monkeypatch.setenv("TORCHTPU_STRICT_PACKS", "1")
    with pytest.raises(PackError, match="boom"):
        discovery.scan([Point("dead", ValueError("boom"))])


def test_packs_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("TORCHTPU_PACKS", "a")
    states = {s.name: s.state for s in discovery.scan([Point("a", good()), Point("b", good("aten::neg"))])}
    assert states == {"a": "loaded", "b": "off"}


def test_unknown_hook_is_named():
    pack = good()
    from torchtpu.plugins import hookimpl

    @hookimpl
    def torchtpu_loverings():
        return []

    pack.torchtpu_loverings = torchtpu_loverings
    with pytest.warns(UserWarning, match="torchtpu_loverings"):
        assert discovery.scan([Point("typo", pack)])[0].state == "broken"


def test_collision_is_an_error_unless_declared():
    with pytest.warns(UserWarning, match="collides"):
        found = discovery.scan([Point("a", good()), Point("b", good())])
        table = registry.build(found)
    assert [s.state for s in found] == ["loaded", "broken"] and len(table.lowerings) == 1
    pack = Pack(api="1.0")
    pack.lowerings.append(Lowering(op="aten::relu", fn=abs, replaces="acme"))
    table = registry.build(discovery.scan([Point("a", good()), Point("b", pack)]))
    assert table.lowerings["aten::relu"].fn is abs


def test_api_numbers():
    with pytest.raises(PackApiError, match="has 1.0"):
        Pack(api="1.7")
    with pytest.raises(PackApiError, match="form"):
        Pack(api="one")


def test_passes_are_ordered_and_cycles_refused():
    def make(name, **order):
        return GraphPass(name=name, stage="aten", run=bool, **order)

    names = [p.name for p in registry.ordered([make("c"), make("b", after=("c",)), make("a", after=("b",))])]
    assert names == ["c", "b", "a"]
    with pytest.raises(ValueError, match="cycle"):
        registry.ordered([make("a", after=("b",)), make("b", after=("a",))])


def test_commands_run():
    assert CliRunner().invoke(cli.main, ["packs", "--json"]).exit_code == 0
    assert "jax" in CliRunner().invoke(cli.main, ["doctor"]).output

"""`torchtpu doctor`: unmet requirements, equal priorities, deaf probes, failing checks, and frozen states."""

import json
from importlib import metadata

import pytest
from click.testing import CliRunner

from torchtpu import cli
from torchtpu.diagnostics import doctor
from torchtpu.plugins import Finding, Pack, Probe, registry
from torchtpu.plugins.fingerprint import fingerprint


def run(*args):
    return CliRunner().invoke(cli.main, ["doctor", *map(str, args)])


def pack_with(priority=0, platforms=("tpu",), generations=None, name="k"):
    pack = Pack(api="1.0")

    @pack.kernel(
        "aten::mm", name=name, fn="no:where", priority=priority, platforms=platforms, generations=generations
    )
    def suitable(call):
        """Always."""

    return pack


def messages(level, **packs):
    with registry.use(packs):
        return [f.message for f in doctor.findings() if f.level == level]


REQUIRES = {
    "torchtpu-core": ["numpy"],
    "acme": [
        "numpy>=1", "no-such-thing-anywhere>=2", "click<0.1", "pytest; extra == 'test'",
        "gone; python_version < '3'", "?!",
    ],
}  # fmt: skip


def test_each_packs_requirements_are_checked(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES[name])
    found = messages("error", acme=Pack(api="1.0"))
    assert f"acme needs click<0.1, found {metadata.version('click')}" in found
    assert "acme needs no-such-thing-anywhere>=2, which is not installed" in found
    assert any("cannot be read, '?!'" in text for text in found) and len(found) == 3


def test_what_is_installed_here_is_well():
    assert not [f for f in doctor.findings() if f.level == "error"]


def test_equal_priorities_of_two_distributions_are_found():
    (text,) = messages("warn", zeta=pack_with(), alpha=pack_with(name="j"))
    assert "aten::mm: alpha.j and zeta.k have priority 0; alpha.j comes first" in text


@pytest.mark.parametrize(
    "other",
    [{"priority": 1}, {"platforms": ("cpu",)}, {"generations": ("v4",)}],
    ids=["priority", "platform", "generation"],
)
def test_kernels_that_never_meet_are_no_finding(other):
    mine = {"generations": ("v5e",)} if "generations" in other else {}
    assert not messages("warn", a=pack_with(**mine), b=pack_with(**other))


def test_a_probe_for_unknown_events_is_found():
    pack = Pack(api="1.0")
    pack.probes.append(Probe(events=frozenset({"flush", "moonrise"}), handle=print))
    (text,) = messages("warn", acme=pack)
    assert "acme" in text and text.endswith(": moonrise")


def test_checks_run_and_one_that_raises_is_a_finding():
    pack = Pack(api="1.0")
    pack.check("fine")(lambda: Finding(level="warn", message="so so [1/2]", remedy="rest"))
    pack.check("bad")(lambda: 1 // 0)
    with registry.use({"acme": pack}):
        done = run()
    assert done.exit_code == 1
    lines = [line.split() for line in done.output.splitlines()]
    assert ["warn", "fine:", "so", "so", "[1/2]", "rest"] in lines
    assert any(line[:2] == ["error", "bad:"] and "ZeroDivisionError:" in line for line in lines)


def test_a_frozen_state_is_compared(tmp_path):
    file = tmp_path / "packs.json"
    with registry.use({"a": Pack(api="1.0"), "b": Pack(api="1.0")}):
        assert run("--freeze", file).exit_code == 0
        again = run("--frozen", file)
        assert again.exit_code == 0 and f"as frozen in {file}" in again.output
    state = json.loads(file.read_text())
    state["libraries"]["jax"] = "0.0.1"
    state["packs"]["a of a"]["fingerprint"] = "other"
    file.write_text(json.dumps(state))
    with registry.use({"a": Pack(api="1.0"), "c": Pack(api="1.0")}):
        done = run("--frozen", file)
    assert done.exit_code == 1
    assert done.output.splitlines()[-4:] == [
        f"jax: frozen 0.0.1, now {metadata.version('jax')}",
        "pack a of a: fingerprint frozen other, now ",
        "pack b of b: frozen, now missing",
        "pack c of c: not frozen, now installed",
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"packs": 3}', '{"libraries": {}, "packs": {"a": 1}}'])
def test_another_file_is_no_frozen_state(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_text(text)
    done = run("--frozen", file)
    assert done.exit_code == 1 and "cannot be compared with" in done.output and "Traceback" not in done.output


class Dist:
    def __init__(self, **files):
        self.files = {"METADATA": "Name: x", **{k.replace("_json", ".json"): v for k, v in files.items()}}

    def read_text(self, name):
        return self.files.get(name)


class Point:
    def __init__(self, dist, value="made_up_pack:pack"):
        self.dist, self.value = dist, value


def test_a_fingerprint_is_that_of_the_contents_not_of_the_installation():
    first = "x/a.py,sha256=1,5\nx.dist-info/INSTALLER,sha256=2,3\n../bin/x,sha256=9,9\nx/a.pyc,,\n"
    second = "../bin/x,sha256=8,9\nx/a.py,sha256=1,5\nx.dist-info/direct_url.json,sha256=7,3\n"
    changed = first.replace("sha256=1,", "sha256=0,")
    a, b, c = (fingerprint(Point(Dist(RECORD=text))) for text in (first, second, changed))
    assert a == b != c and len(a) == 16
    assert fingerprint(Point(None)) == ""


def test_an_editable_packs_fingerprint_follows_its_sources(tmp_path, monkeypatch):
    (tmp_path / "made_up_pack").mkdir()
    source = tmp_path / "made_up_pack" / "__init__.py"
    source.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    point = Point(Dist(RECORD="", direct_url_json='{"dir_info": {"editable": true}}'))
    before = fingerprint(point)
    assert fingerprint(point) == before
    source.write_text("raise SystemExit('changed')")
    assert fingerprint(point) != before

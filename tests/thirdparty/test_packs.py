"""Installed packs, good ones and broken ones: each failure is told with all that is needed, and none is fatal."""

import json
import os
import subprocess
import sys

import pytest

BROKEN = os.environ.get("TORCHTPU_BROKEN_PACKS", "")
pytestmark = pytest.mark.skipif(not os.path.isdir(BROKEN), reason="tox installs the broken packs")

# name: version, state, part of the reason, part of the remedy
EXPECTED = {
    "dead": (
        "0.1.1",
        "broken",
        "ModuleNotFoundError: No module named 'torchtpu_of_tomorrow'",
        "reinstall or remove",
    ),
    "major": ("0.1.2", "refused", "needs pack API v2", "upgrade torchtpu-core"),
    "minor": (
        "0.1.3",
        "refused",
        "written for pack API 1.99, this torchtpu-core has 1.0",
        "upgrade torchtpu-core",
    ),
    "duplicate": ("0.1.4", "broken", "aten::relu collides with the one of torchtpu-ops", "set replaces="),
    "hook": ("0.1.5", "broken", "ZeroDivisionError: while listing", "reinstall or remove"),
    "unknown": ("0.1.6", "broken", "torchtpu_lovverings", "reinstall or remove"),
    "exits": ("0.1.7", "broken", "SystemExit: goodbye", "reinstall or remove"),
    "schema": ("0.1.8", "broken", "Tensr", "reinstall or remove"),
}
HEALTHY = {"acme", "ops", "mine"}  # mine is what `torchtpu new-pack` has written
USE = """
import torch, acme_tpu
x = torch.tensor([-1.0, 2.0], device="tpu")
print(torch.relu(x).tolist())
got = acme_tpu.swiglu(x, x).cpu()
torch.testing.assert_close(got, torch.nn.functional.silu(x.cpu()) * x.cpu())
print("swiglu works")
"""
CLI = "from torchtpu.cli import run; run()"


def python(code, *args, **env):
    """Run code in a fresh process; ``env`` adds variables, None removes one."""
    variables = {**os.environ, "PYTHONPATH": BROKEN, "PYTHONWARNINGS": "default", "COLUMNS": "400", **env}
    variables = {k: v for k, v in variables.items() if v is not None}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240)


@pytest.fixture(scope="module")
def rows():
    done = python(CLI, "packs", "--json")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_broken_pack_is_listed_with_reason_and_remedy(rows, name):
    version, state, reason, remedy = EXPECTED[name]
    row = rows[name]
    assert (row["distribution"], row["version"], row["state"]) == (f"broken-{name}", version, state)
    assert reason in row["reason"] and remedy in row["remedy"]


def test_the_healthy_packs_are_loaded(rows):
    assert {n for n, row in rows.items() if row["state"] == "loaded"} == HEALTHY
    assert rows["acme"]["distribution"] == "acme-tpu" and rows["acme"]["hooks"] == ["lowerings", "kernels"]
    assert rows["mine"]["distribution"] == "mine-tpu" and rows["mine"]["hooks"] == ["lowerings", "kernels"]
    assert set(rows) == {*EXPECTED, *HEALTHY}


def test_the_device_and_the_healthy_packs_work_and_each_failure_is_told_once():
    done = python(USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[0.0, 2.0]", "swiglu works"]
    for name, (version, _, reason, remedy) in EXPECTED.items():
        told = [
            line for line in done.stderr.splitlines() if f"pack '{name}' of broken-{name} {version}" in line
        ]
        assert len(told) == 1, (name, done.stderr)
        block = done.stderr[done.stderr.index(told[0]) :]
        assert reason in block and remedy in block


def test_only_named_packs_are_loaded():
    done = python(USE, TORCHTPU_PACKS="ops,acme", PYTHONWARNINGS="error::UserWarning")
    assert done.returncode == 0 and "swiglu works" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("packs", "words"),
    [("ops,acme,dead", "pack 'dead' of broken-dead 0.1.1"), ("ops,nobody", "not installed: nobody")],
)
def test_a_named_pack_is_required(packs, words):
    done = python(USE, TORCHTPU_PACKS=packs)
    assert done.returncode != 0 and "PackError" in done.stderr and words in done.stderr


def test_strict_makes_any_failure_an_error():
    done = python(USE, TORCHTPU_STRICT_PACKS="1")
    assert done.returncode != 0 and "PackError: pack " in done.stderr and " of broken-" in done.stderr
    assert python(USE, TORCHTPU_STRICT_PACKS="1", PYTHONPATH=None).returncode == 0


def test_importing_torch_loads_no_pack():
    code = "import sys, torch; print([m for m in sys.modules if m.startswith(('broken_', 'acme', 'jax'))])"
    assert python(code, TORCHTPU_STRICT_PACKS="1").stdout.strip() == "[]"


def test_the_commands_name_every_pack():
    table, doctor = python(CLI, "packs"), python(CLI, "doctor")
    assert table.returncode == 0 and doctor.returncode == 1
    for name, (version, state, reason, remedy) in EXPECTED.items():
        line = next(x for x in doctor.stdout.splitlines() if f"pack {name} of broken-{name} {version}" in x)
        assert line.split()[0] == "error" and state in line
        assert reason in doctor.stdout and remedy in doctor.stdout
        assert f"broken-{name}" in table.stdout and version in table.stdout

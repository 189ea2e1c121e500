"""`explain` tells each compilation and flush with its reason, line and what changed."""

import subprocess
import sys

import pytest
import torch

import torchtpu


def work(size):
    x = torch.ones(size, device="tpu")
    return (x * 2).sum().item()  # the line that flushes


LINE = work.__code__.co_firstlineno + 2


def test_flushes_have_reason_line_and_source():
    with torchtpu.mode("fused"), torchtpu.explain() as report:
        work(3)
        work(3)
    first, second = report.flushes
    assert first.where == second.where == f"{__file__}:{LINE}"
    assert first.reason == "the host reads it"
    assert (first.operators, first.outputs) == (3, second.outputs)
    assert first.source in ("compiler", "disk")
    assert second.source == "memory"
    assert f"{__file__}:{LINE}" in str(report)


def test_what_changed_is_named():
    with torchtpu.mode("fused"), torchtpu.explain() as report:
        work(40)
        work(41)
    assert "[40]" in report.flushes[1].changed
    assert "[41]" in report.flushes[1].changed


def test_strict_compilations_are_told():
    with torchtpu.mode("strict"), torchtpu.explain() as report:
        torch.ones(77, device="tpu").exp2_()
    names = [e.name for e in report.compilations]
    assert "aten_exp2_" in names
    assert all(e.where.startswith(__file__) for e in report.compilations)
    assert not report.flushes


def test_a_line_that_keeps_compiling_is_warned_about():
    with torchtpu.mode("fused"), pytest.warns(UserWarning, match="8 different programs"):
        for n in range(100, 109):
            torch.ones(n, device="tpu").cos().sum().item()


def test_nothing_is_kept_outside_the_block():
    from torchtpu import events

    with torchtpu.explain() as report:
        pass
    torch.ones(78, device="tpu").exp2()
    assert not report.events
    assert not events.handlers


SCRIPT = "import torch\nx = torch.ones(5, device='tpu')\nprint((x + 1).sum().item())\n"


def test_command_and_variable(tmp_path):
    script = tmp_path / "torchtpu" / "script.py"  # a user's folder may have our name
    script.parent.mkdir()
    script.write_text(SCRIPT)
    command = [sys.executable, "-c", "from torchtpu.cli import run; run()", "explain", str(script)]
    env = {"TORCHTPU_PLATFORM": "cpu", "TORCHTPU_MODE": "fused", "PATH": "", "HOME": str(tmp_path)}
    for args, extra in ((command, {}), ([sys.executable, str(script)], {"TORCHTPU_EXPLAIN": "1"})):
        done = subprocess.run(args, capture_output=True, text=True, env={**env, **extra}, check=True)
        assert done.stdout == "10.0\n"
        assert "script.py:3  flush: the host reads it" in done.stderr

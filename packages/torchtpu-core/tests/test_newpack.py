"""`torchtpu new-pack`: a complete pack with the names filled in, or a clear error and nothing written."""

import ast
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from torchtpu import cli, newpack

CHILD = "import torchtpu.plugins.registry as r, acme_vision_tpu as m; "


def new(*args):
    return CliRunner().invoke(cli.main, ["new-pack", *map(str, args)])


def files(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_the_pack_is_complete_and_has_its_names(tmp_path):
    done = new("acme-vision", "--path", tmp_path)
    assert done.exit_code == 0 and str(tmp_path / "acme-vision-tpu") in done.output
    written = files(tmp_path / "acme-vision-tpu")
    assert set(written) == {
        "pyproject.toml", "README.md", "src/acme_vision_tpu/__init__.py", "src/acme_vision_tpu/pallas.py",
        "tests/test_acme_vision.py",
    }  # fmt: skip
    assert not any(newpack.WORD in path + text for path, text in written.items())
    for path, text in written.items():
        if path.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["name"] == "acme-vision-tpu"
    assert project["entry-points"]["torchtpu.packs.v1"] == {"acme_vision": "acme_vision_tpu:pack"}
    (needed,) = map(Requirement, project["dependencies"])
    assert needed.name == "torchtpu-core" and needed.specifier.contains(version("torchtpu-core"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("Acme", "no name"), ("1st", "no name"), ("a/b", "no name"), ("../up", "no name"), ("a--b", "no name"),
     ("", "no name"), ("naïve", "no name"), ("aten", "taken"), ("ops", "taken"), ("class", "taken")],
)  # fmt: skip
def test_a_bad_name_is_told_and_nothing_is_written(tmp_path, name, words):
    done = new("--path", tmp_path, "--", name)
    assert done.exit_code == 1 and words in done.output and "Traceback" not in done.output
    assert not files(tmp_path) and not list(tmp_path.iterdir())


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "acme-tpu").mkdir()
    (tmp_path / "acme-tpu" / "mine.txt").write_text("mine")
    done = new("acme", "--path", tmp_path)
    assert done.exit_code == 1 and "acme-tpu exists" in done.output
    assert files(tmp_path) == {"acme-tpu/mine.txt": "mine"}


def test_a_missing_parent_and_a_failing_disk_are_told(tmp_path, monkeypatch):
    done = new("acme", "--path", tmp_path / "gone")
    assert done.exit_code == 1 and "there is no folder" in done.output and not list(tmp_path.iterdir())

    write = Path.write_text

    def full(path, *args, **kwargs):
        if path.suffix == ".py":
            raise OSError(28, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    done = new("acme", "--path", tmp_path)
    assert done.exit_code == 1 and "No space left" in done.output and "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_the_written_pack_conforms(tmp_path):
    """Without an installation; tox installs one and runs its own test."""
    assert new("acme-vision", "--path", tmp_path).exit_code == 0
    folder = tmp_path / "acme-vision-tpu"
    code = CHILD + (
        "from torchtpu.testing import conformance; import sys; assert 'jax.experimental.pallas' not in sys.modules\n"
        "report = conformance(m.pack); print(report.checked)"
    )
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "TORCHTPU_PACKS": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    assert "kernel tiled of acme_vision::softcap" in done.stdout

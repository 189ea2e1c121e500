"""The pages are true: their programs run, the site builds, and no public name, command or variable is missing."""

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RUNNER = Path(__file__).with_name("run_page.py")


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


run_page, hooks = module(RUNNER), module(DOCS / "hooks.py")


def text(path):
    return path.read_text(encoding="utf-8")


def with_programs():
    return [path for path in PAGES if any(block.runs for block in run_page.blocks(text(path)))]


def run(path, cwd):
    command = [sys.executable, "-W", "error::UserWarning", str(RUNNER), str(path)]
    env = {k: v for k, v in os.environ.items() if k not in ("TORCHTPU_MODE", "TORCHTPU_EXPLAIN")}
    env |= {"TORCHTPU_PLATFORM": "cpu"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What becomes of every page, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(run, path, tmp_path_factory.mktemp(path.stem)) for path in with_programs()}


@pytest.mark.parametrize("path", with_programs(), ids=lambda path: path.name)
def test_programs_of_a_page_run(path, runs):
    done = runs[path].result()
    assert done.returncode == 0, done.stderr[-3000:]


WRONG = {
    "an error": "```python\n1 / 0\n```\n",
    "another output": '```python\nprint(1)\n```\n\n```text title="prints"\n2\n```\n',
    "a warning": "```python\nimport warnings\n\nwarnings.warn('x')\n```\n",
}


@pytest.mark.parametrize("page", WRONG.values(), ids=WRONG)
def test_a_wrong_page_is_found(page, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page)
    done = run(path, tmp_path)
    assert done.returncode == 1
    assert "page.md" in done.stderr


def test_every_program_is_fenced_and_every_exception_has_a_reason():
    for path in PAGES:
        for block in run_page.blocks(text(path)):
            assert block.runs or block.language != "python" or "not run: " in block.info
        outside = run_page.FENCE.sub("", text(path))
        assert "```" not in outside, f"{path.name}: a fence that is not closed or names no language"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site; `DOCS_SITE` names a folder to keep it in."""
    folder = Path(os.environ.get("DOCS_SITE") or tmp_path_factory.mktemp("site"))
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
    ]
    subprocess.run([*command, str(folder)], check=True, timeout=200)
    return folder


def test_the_site_has_every_page_and_fetches_nothing(site):
    for path in DOCS.glob("*.md"):
        built = site / ("index.html" if path.stem == "index" else f"{path.stem}/index.html")
        html = text(built)
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"', html)
        assert not [url for url in loaded if "canonical" not in url], built
        assert "fonts.g" not in html


def test_the_reference_names_everything_public(site):
    import torch

    import torchtpu

    html = text(site / "reference" / "index.html")
    names = [f"torchtpu.{name}" for name in torchtpu._PUBLIC]
    names += [f"torch.tpu.{name}" for name in hooks.public(torch.tpu)]
    assert {"torch.tpu.EagerMode", "torch.tpu.memory_allocated", "torchtpu.explain"} <= set(names)
    assert not [name for name in names if f">{name}<" not in re.sub(r"\(.*?<", "<", html)]
    assert "None.</p>" not in html and "api:" not in html


def test_torch_tpu_has_no_name_that_dir_does_not_show():
    import torch

    code = text(Path(torch.tpu.__file__))
    defined = set(re.findall(r"^(?:def|class) ([a-z]\w*)", code, re.M | re.I)) | set(torch.tpu._LAZY)
    assert {name for name in defined if not name.startswith("_")} <= set(hooks.public(torch.tpu))


def variables():
    """The environment variables that the packages read."""
    found = set()
    for path in ROOT.glob("packages/*/src/**/*.py"):
        found |= set(re.findall(r"\bTORCHTPU_[A-Z][A-Z_]*", text(path)))
        found |= {f"TORCHTPU_{name}" for name in re.findall(r"\benv\(\"([A-Z_]+)\"", text(path))}
    return found - {"TORCHTPU_API"}  # a name in a pack's module


def test_the_table_of_variables_is_complete():
    table = set(re.findall(r"^\| `(TORCHTPU_\w+)", text(DOCS / "troubleshooting.md"), re.M))
    assert table == variables()


def test_commands_on_the_pages_exist():
    from torchtpu import cli

    assert "doctor" in cli.main.commands
    for path in PAGES:
        for block in run_page.blocks(text(path)):
            if block.language == "bash":
                named = re.findall(r"^(?:\w+=\S+ )*torchtpu (?!-)(\S+)", block.text, re.M)
                assert set(named) <= set(cli.main.commands), path.name


def test_links_of_the_read_me_lead_somewhere():
    for path in [ROOT / "README.md", *ROOT.glob("packages/*/README.md")]:
        for link in re.findall(r"\]\(([^)#]+)", text(path)):
            assert "://" in link or (path.parent / link).exists(), f"{path}: {link}"

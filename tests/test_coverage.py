"""The list of operators is true."""

import re
from pathlib import Path

from click.testing import CliRunner

from torchtpu import cli
from torchtpu.diagnostics import coverage

DOCS = Path(__file__).parents[1] / "docs"


def test_most_operators_run_on_the_device():
    counts = coverage.counts()
    assert counts["lowered"] >= 460
    assert counts["lowered"] + counts["decomposed"] >= 980
    assert counts["fallback"] <= 80


def test_some_operators_are_served_as_known():
    found = coverage.report()
    assert [found[op] for op in ("add", "view", "histogram", "_foreach_add", "hash_tensor")] == [
        "lowered"
    ] * 5
    assert found["nonzero"] == found["masked_select"] == "host"
    assert found["einsum"] == found["mvlgamma"] == "decomposed"
    assert found["_dirichlet_grad"] == "fallback"
    assert found["_sparse_mm"] == found["quantize_per_tensor"] == "unsupported"


def test_the_page_is_what_the_command_writes(tmp_path):
    path = tmp_path / "operators.md"
    result = CliRunner().invoke(cli.main, ["ops", "--markdown", str(path)])
    assert result.exit_code == 0
    assert path.read_text() == (DOCS / "operators.md").read_text(), "run `torchtpu ops --markdown`"


def test_the_command_lists_operators():
    result = CliRunner().invoke(cli.main, ["ops"])
    assert re.search(r"^lowered +mm$", result.output, re.M)
    assert re.search(r"\d+ lowered, \d+ decomposed", result.output)

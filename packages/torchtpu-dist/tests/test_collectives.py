"""Every collective on three ranks; the checks are in ranks_collectives.py."""

from pathlib import Path

import pytest

from torchtpu_dist.testing import checks, run_checks

SCRIPT = Path(__file__).with_name("ranks_collectives.py")
RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_checks(SCRIPT, tmp_path_factory.mktemp("ranks"), RANKS, 120)


@pytest.mark.parametrize("check", checks(SCRIPT))
def test_collective(found, check):
    for rank, results in enumerate(found):
        assert not results[check], f"rank {rank}: {results[check]}"

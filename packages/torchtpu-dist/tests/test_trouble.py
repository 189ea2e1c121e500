"""Ranks that disagree, come late or end: an error on the others, in time, and never a hang."""

import re
from pathlib import Path

import pytest
import torch.distributed as dist

from torchtpu_dist.testing import run_ranks

SCRIPT = Path(__file__).with_name("ranks_trouble.py")


def run(trouble, folder, ranks=2, **env):
    # a store that outlives the ranks, as that of torchrun does
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return run_ranks(SCRIPT, folder, ranks, 60, trouble.split(), {"STORE": str(store.port), **env})


def raised(end):
    found = re.search(r"^RAISED (\w+) (.*)$", end.output, re.M)
    assert found, end.output[-2000:]
    assert "AGAIN torchtpu: the group cannot go on after" in end.output
    assert end.code == 0 and "END" in end.output
    return found[1], found[2]


@pytest.mark.parametrize("trouble", ["another size", "another operation", "another type", "asynchronous"])
def test_a_disagreement_names_both_lines_on_every_rank(trouble, tmp_path):
    lines = set()
    for rank, end in enumerate(run(trouble, tmp_path)):
        kind, message = raised(end)
        assert kind == "CollectiveError"
        assert f"rank {rank} runs" in message and f"rank {1 - rank} runs" in message
        assert message.count("ranks_trouble.py:") == 2
        lines.add(frozenset(re.findall(r"rank \d runs .*? at \S+?\.py:\d+", message)))
    assert len(lines) == 1


def test_a_third_rank_learns_of_it(tmp_path):
    for end in run("another size", tmp_path, 3):
        assert "rank 0 runs all_reduce(sum, float32[8])" in raised(end)[1]


def test_a_collective_that_only_one_rank_runs(tmp_path):
    ended = run("one more", tmp_path)
    kind, message = raised(ended[0])
    assert kind == "CollectiveTimeout" and "rank 1 did not come to it" in message
    told = ended[0].output
    assert told.count("the last collectives of rank 0") == 1 and "group 0, ranks 0 1" in told
    assert re.search(r"^ +5 all_reduce\(sum, float32\[8\]\) at \S+trouble.py:\d+: done \d", told, re.M)
    assert re.search(r"^ +6 all_reduce\(sum, float32\[4\]\) at .*: not launched, called [3-9]\.", told, re.M)
    assert ended[1].code == 0 and "RAISED" not in ended[1].output


def test_a_late_rank(tmp_path):
    ended = run("late", tmp_path, TORCHTPU_COLLECTIVE_DUMP=str(tmp_path / "last-of-"))
    kind, message = raised(ended[0])
    assert kind == "CollectiveTimeout" and "not complete after 3 s" in message
    assert "the last collectives" not in ended[0].output
    lines = (tmp_path / "last-of-0").read_text().splitlines()
    assert "rank 0" in lines[0] and len(lines) == 2 + 6


@pytest.mark.parametrize("gone", [0, 1])
def test_a_killed_rank(gone, tmp_path):
    ended = run(f"killed {gone}", tmp_path)
    assert ended[gone].code == -9
    assert "all_reduce(sum, float32[4])" in raised(ended[1 - gone])[1]


def test_destroying_a_group_with_a_pending_collective_returns(tmp_path):
    for end in run("destroyed", tmp_path):
        assert end.code == 0 and "END" in end.output

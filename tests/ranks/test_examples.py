"""The distributed examples under torchrun, and their checkpoints in one process; the checks are in examples.py."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

testing = pytest.importorskip("torchtpu_dist.testing")
for needed in ("sklearn", "rich", "matplotlib"):
    pytest.importorskip(needed)

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = Path(__file__).with_name("examples.py")
FOUR = ("check_sharded_on_two_dimensions", "check_sharded_and_replicated")
LIMIT = 240  # seconds, for machines that do much else


def launch(folder, size, *wanted):
    """What went wrong on each rank, and the folder with the checkpoints."""
    file = folder / "found"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command = [*torchrun, str(SCRIPT), str(file), *wanted]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(size)], folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("four"), 4, *FOUR)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("check", [name for name in testing.checks(SCRIPT) if name not in FOUR])
def test_two_ranks(two, check):
    for rank, results in enumerate(two[0]):
        assert not results[check], f"rank {rank}: {results[check]}"


@pytest.mark.slow
@pytest.mark.parametrize("check", FOUR)
def test_four_ranks(four, check):
    for rank, results in enumerate(four[0]):
        assert not results[check], f"rank {rank}: {results[check]}"


@pytest.mark.slow
@pytest.mark.parametrize("written", ["two", "four"])
def test_one_process_continues_the_checkpoint_of_several(script, request, written):
    folder = request.getfixturevalue(written)[1] / ("fsdp" if written == "two" else "both")
    args = script.gpt_settings(device="cpu")
    with script.ranks.joined("cpu"):
        run = script.fsdp_gpt.build(args, 0, 1)
        script.fsdp_gpt.resume(run, folder)
        assert run.step == script.HALF
        script.close(script.curve(run, script.STEPS), script.plain_gpt(args)[script.HALF :])


def test_a_checkpoint_of_other_settings_is_refused(script, tmp_path):
    args = script.gpt_settings(device="cpu")
    with script.ranks.joined("cpu"):
        script.fsdp_gpt.fit(script.fsdp_gpt.build(args, 0, 1), 1, 1, tmp_path, True)
        args.seed = 5
        with pytest.raises(SystemExit, match="was trained with"):
            script.fsdp_gpt.resume(script.fsdp_gpt.build(args, 0, 1), tmp_path)


def test_a_launch_that_is_half_described_is_refused(script, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit, match="MASTER_ADDR.*torchrun"), script.ranks.joined("cpu"):
        pass


def test_a_batch_that_cannot_be_shared_is_refused(script):
    with pytest.raises(SystemExit, match="--batch 10 is not a multiple of the 4 ranks"):
        script.ranks.share(10, 4)

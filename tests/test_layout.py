"""The packages that are tested together are all here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAMILY = ("torchtpu", "torchtpu_ops", "torchtpu_kernels", "torchtpu_dist")


def test_exactly_the_expected_packages_are_importable():
    if "EXPECT" not in os.environ:
        pytest.skip("EXPECT is not set: only tox knows what it has installed")
    found = {name for name in FAMILY if importlib.util.find_spec(name) is not None}
    assert found == set(os.environ["EXPECT"].split())


def test_a_release_names_ranges_and_a_checkout_its_packages():
    def requirements(**env):
        command = [sys.executable, "-m", "hatchling", "metadata", "dependencies"]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
        )
        return json.loads(done.stdout)

    assert requirements(TORCHTPU_RELEASE="1") == ["torchtpu-core<0.2,>=0.1", "torchtpu-ops<0.2,>=0.1"]
    assert f"torchtpu-core @ {(ROOT / 'packages/torchtpu-core').as_uri()}" in requirements()

"""Alone means alone: no package of this family is installed but the expected ones."""

import importlib.util
import os

import pytest

FAMILY = ("torchtpu", "torchtpu_ops", "torchtpu_kernels", "torchtpu_dist")


def test_only_the_expected_packages_are_importable():
    if "EXPECT" not in os.environ:
        pytest.skip("EXPECT is not set: only tox knows what it has installed")
    found = {name for name in FAMILY if importlib.util.find_spec(name) is not None}
    assert found == set(os.environ["EXPECT"].split())

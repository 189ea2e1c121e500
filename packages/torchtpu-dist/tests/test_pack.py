"""The pack is found by its entry point, and its version is told once."""

import importlib.metadata

import torchtpu_dist
from torchtpu.plugins import Pack


def test_the_entry_point_leads_to_the_pack():
    points = importlib.metadata.entry_points(group="torchtpu.packs.v1", name="dist")
    assert [point.dist.name for point in points] == ["torchtpu-dist"]
    assert isinstance(points["dist"].load(), Pack)


def test_the_versions_agree():
    assert torchtpu_dist.__version__ == importlib.metadata.version("torchtpu-dist")

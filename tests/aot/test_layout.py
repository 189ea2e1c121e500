"""Meshes of ranks follow the chips' links; the chips are those of topologies that are not here."""

import itertools

import pytest
import torch

from torchtpu.runtime import topology
from torchtpu_dist.layout import places

pytest.importorskip("libtpu")


def distance(a, b):
    """Links between two chips of a slice without wrap-around."""
    return sum(abs(x - y) for x, y in zip(a.coords, b.coords, strict=True))


@pytest.mark.parametrize(
    ("name", "shape"), [("v5e:4x8", (4, 8)), ("v5e:4x8", (8, 4)), ("v5p:4x4x4", (4, 4, 4))]
)
def test_neighbours_in_the_mesh_are_neighbours_on_the_wire(name, shape):
    devices = list(topology.topology(name).devices)
    order = torch.randperm(len(devices)).tolist()  # ranks need not be numbered like the chips
    devices = [devices[i] for i in order]
    mesh = places(devices, shape, None, {})
    assert mesh.shape == shape and sorted(mesh.flatten().tolist()) == list(range(len(devices)))
    for axis in range(mesh.dim()):
        lines = mesh.movedim(axis, -1).reshape(-1, mesh.shape[axis])
        for line in lines.tolist():
            for a, b in itertools.pairwise(line):
                assert distance(devices[a], devices[b]) == 1


def test_what_does_not_fit():
    devices = topology.topology("v5e:4x8").devices
    with pytest.raises(ValueError, match="a mesh of 16 devices cannot hold the 32 ranks"):
        places(devices, (4, 4), None, {})
    with pytest.raises(ValueError, match="torchtpu"):
        places(devices, (16, 2), None, {})

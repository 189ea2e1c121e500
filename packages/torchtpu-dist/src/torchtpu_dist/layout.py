"""Which rank stands where in a mesh, so that neighbours in the mesh are neighbours on the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from torchtpu_dist import rendezvous


def topology_aware_mesh(
    mesh_shape: Sequence[int],
    *,
    topology: Literal["single_slice", "multi_slice"] = "single_slice",
    dcn_mesh_shape: Sequence[int] | None = None,
    process_is_granule: bool = False,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    """The ranks as an int64 tensor of ``mesh_shape``, for ``DeviceMesh("tpu", mesh)``.

    JAX's `mesh_utils` lays the axes along the chips' own links, so that collectives along one go from neighbour
    to neighbour; give the axis with the most traffic last. With ``topology="multi_slice"`` the shape is
    ``dcn_mesh_shape`` times ``mesh_shape``, axis by axis: the former between slices (or processes, if
    ``process_is_granule``), the latter within one. ``allow_split_physical_axes`` lets a link's axis serve two axes of
    the mesh, ``contiguous_submeshes`` keeps each process's devices together. Devices of the CPU keep their order.

    Raises RuntimeError without a process group, ValueError for a shape that the ranks or their links do not fit.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torchtpu: topology_aware_mesh needs a process group; call init_process_group first"
        )
    if topology not in ("single_slice", "multi_slice") or (topology == "multi_slice") != (
        dcn_mesh_shape is not None
    ):
        raise ValueError('torchtpu: topology is "single_slice", or "multi_slice" with a dcn_mesh_shape')
    options = {"allow_split_physical_axes": allow_split_physical_axes}
    if dcn_mesh_shape is None:
        options["contiguous_submeshes"] = contiguous_submeshes
    else:
        options["process_is_granule"] = process_is_granule
    return places(rendezvous.current().devices, tuple(mesh_shape), dcn_mesh_shape, options)


def places(
    devices: Sequence[Any], shape: tuple[int, ...], between: Sequence[int] | None, options: dict[str, bool]
) -> torch.Tensor:
    """The indices of ``devices`` in a mesh of ``shape``, or of ``between`` times ``shape``."""
    from jax.experimental import mesh_utils

    wanted = math.prod(shape) * math.prod(between or ())
    if wanted != len(devices):
        raise ValueError(
            f"torchtpu: a mesh of {wanted} devices cannot hold the {len(devices)} ranks that there are"
        )
    try:
        if between is None:
            mesh = mesh_utils.create_device_mesh(shape, devices, **options)
        else:
            mesh = mesh_utils.create_hybrid_device_mesh(shape, tuple(between), devices, **options)
    except NotImplementedError as error:
        raise ValueError(f"torchtpu: {error}") from error
    rank = {device.id: index for index, device in enumerate(devices)}
    return torch.tensor([rank[d.id] for d in mesh.ravel()]).view(mesh.shape)

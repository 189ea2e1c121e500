"""torchtpu's own errors; shape, dtype and index errors keep torch's types and words."""

from __future__ import annotations


class TorchTpuError(RuntimeError):
    """The base of all errors that are about torchtpu itself."""


class PackError(TorchTpuError):
    """An operator pack that is required cannot be used."""


class PackApiError(PackError):
    """A pack was written for another version of the pack API."""

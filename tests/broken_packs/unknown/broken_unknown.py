"""A plain module with a hook that does not exist."""

from torchtpu.plugins import hookimpl

TORCHTPU_API = "1.0"


@hookimpl
def torchtpu_lovverings():
    """A misspelt hook."""
    return []

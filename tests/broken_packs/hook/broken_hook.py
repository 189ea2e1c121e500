"""A plain module whose hook raises."""

from torchtpu.plugins import hookimpl

TORCHTPU_API = "1.0"


@hookimpl
def torchtpu_lowerings():
    """Raises while it makes its list."""
    raise ZeroDivisionError("while listing")

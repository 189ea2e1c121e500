"""Cannot be imported."""

from torchtpu_of_tomorrow import pack  # noqa: F401

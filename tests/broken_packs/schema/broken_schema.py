"""Defines an operator with a schema that torch cannot read."""

from torchtpu.plugins import Pack

pack = Pack(api="1.0")


@pack.op("schema::wrong(Tensr x) -> Tensor")
def wrong(x):
    """Nothing."""
    return x

"""Serves an operator that torchtpu-ops serves, without saying that it replaces that."""

from torchtpu.plugins import Pack

pack = Pack(api="1.0")


@pack.lowering("aten::relu")
def relu(self):
    """Not relu."""
    return self * 0 - 1

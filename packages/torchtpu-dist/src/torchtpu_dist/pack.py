"""The entry point: what this distribution offers to torchtpu."""

from torchtpu.plugins import Pack

pack = Pack(api="1.0")
pack.namespace("distributed", "torchtpu_dist.public")

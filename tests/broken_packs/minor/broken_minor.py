"""Written for a newer minor pack API, and uses what only that has."""

from torchtpu.plugins import Pack

pack = Pack(api="1.99")
pack.lowering_of_the_future()

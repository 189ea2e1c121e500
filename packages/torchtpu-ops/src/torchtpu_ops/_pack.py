"""The one `Pack` object that every family of this package registers into."""

from torchtpu.plugins import Pack

pack = Pack(api="1.0")

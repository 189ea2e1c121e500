"""Storages with device buffers, and strided views of them."""

"""torch's own operator database on the device, against the CPU."""

"""How torch sees the device."""

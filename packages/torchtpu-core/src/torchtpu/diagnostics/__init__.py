"""What the device can do and what it did."""

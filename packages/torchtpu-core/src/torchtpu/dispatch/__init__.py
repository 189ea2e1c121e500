"""From an ATen call to a program and its results."""

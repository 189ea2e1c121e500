"""PJRT: platform choice, transfers, compiled programs."""

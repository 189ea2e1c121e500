"""Every test of dist runs on the CPU PJRT client."""

import os

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

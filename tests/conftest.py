"""Cross-package tests run on the CPU PJRT client."""

import os

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

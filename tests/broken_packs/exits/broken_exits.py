"""Ends the process at import, if it is let."""

import sys

sys.exit("goodbye")

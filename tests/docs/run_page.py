"""Runs the Python blocks of a page in order, in one namespace: ``python run_page.py PAGE``.

A block whose info string says ``title="not run: REASON"`` is left out. A ``text`` block with
``title="prints"`` right after a block is what that block prints; ``...`` stands for anything.
"""

import contextlib
import doctest
import io
import re
import sys
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w+)(.*)\n((?:.*\n)*?)```$", re.M)
SKIPPED = re.compile(r'title="not run: [^"]+"')


class Block(NamedTuple):
    """A fenced block: ``line`` is the number of its first line of text."""

    language: str
    info: str
    text: str
    line: int

    @property
    def runs(self):
        return self.language == "python" and not SKIPPED.search(self.info)


def blocks(text):
    """The fenced blocks of a page."""
    return [Block(m[1], m[2], m[3], text.count("\n", 0, m.start(3)) + 1) for m in FENCE.finditer(text)]


def run(path):
    """Run a page; raises the first error, whose traceback shows the page's own line."""
    found = blocks(path.read_text(encoding="utf-8"))
    namespace = {"__name__": "__main__"}
    for block, after in zip(found, [*found[1:], None], strict=True):
        if not block.runs:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), namespace)
        if after is not None and 'title="prints"' in after.info:
            same = doctest.OutputChecker().check_output(after.text, printed.getvalue(), doctest.ELLIPSIS)
            if not same:
                raise AssertionError(f"{path}:{block.line} prints\n{printed.getvalue()}\nnot\n{after.text}")


if __name__ == "__main__":
    run(Path(sys.argv[1]))

"""What a preflight found, as plain data that becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

VALUES = ("zeros", "cpu")  # what results read as
EFFORTS = ("quick", "full")  # how hard the compiler tries


@dataclass
class ProgramReport:
    """One distinct program; sizes in bytes, times in seconds of the chip.

    ``state`` is ``"compiled"``, ``"refused"``, ``"aborted"`` (the compiler ended its process), ``"late"``,
    ``"host"`` or ``"not compiled"``, ``error`` the compiler's words. ``launches`` counts by step, step 0 being
    before the first. ``hbm`` is what the device holds when the program runs; ``roofline`` the time below which
    the chip cannot do it in bfloat16, and ``mfu`` the share of its peak that this bound allows.
    """

    number: int
    name: str
    where: str
    equations: int
    first_step: int
    launches: dict[int, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    held: int = 0
    state: str = "not compiled"
    error: str = ""
    flops: float = 0.0
    bytes_accessed: float = 0.0
    seconds: float | None = None
    arguments: int = 0
    temporaries: int = 0
    peak: int = 0
    hbm: int = 0
    roofline: float = 0.0
    mfu: float = 0.0


@dataclass
class Place:
    """Something that happens at a line of the user's, and in which steps."""

    what: str
    where: str
    source: str = ""
    steps: dict[int, int] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """Whether it happens in several steps."""
        return len([step for step in self.steps if step > 0]) > 1


@dataclass
class Replacement:
    """A name of CUDA's in the script and what ran in its place."""

    where: str
    found: str
    used: str


@dataclass
class Advice:
    """A remark; ``kind`` groups remarks."""

    kind: str
    message: str
    where: str = ""


@dataclass
class Failure:
    """What ended the script: the exception and the user's line."""

    kind: str
    message: str
    where: str
    source: str
    trace: str


@dataclass
class Report:
    """A whole preflight; ``str()`` is the text, `json` and `html` the other forms."""

    script: str
    topology: str
    chip: dict[str, Any]
    values: str
    mode: str
    effort: str = "quick"
    steps: int = 0
    programs: list[ProgramReport] = field(default_factory=list)
    reads: list[Place] = field(default_factory=list)
    hosts: list[Place] = field(default_factory=list)
    fallbacks: list[Place] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    failure: Failure | None = None
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether the script ran, everything compiles and fits, and nothing was left out."""
        bad = [p for p in self.programs if p.state not in ("compiled", "host")]
        return not (self.failure or self.stopped or bad or self.too_large)

    @property
    def too_large(self) -> list[ProgramReport]:
        """The programs during which the device would hold more than it has."""
        return [p for p in self.programs if p.hbm > self.chip["hbm_bytes"] or "RESOURCE_EXHAUSTED" in p.error]

    @property
    def hbm(self) -> int:
        """The most bytes that the device holds at once."""
        return max((p.hbm for p in self.programs), default=0)

    @property
    def recompilations(self) -> list[ProgramReport]:
        """The programs that are new in the last whole step; every later step may bring as many."""
        return [p for p in self.programs if self.steps > 1 and p.first_step == self.steps]

    @property
    def step_programs(self) -> list[tuple[ProgramReport, int]]:
        """The programs of the last whole step and their launches in it."""
        return [(p, p.launches[self.steps]) for p in self.programs if p.launches.get(self.steps)]

    @property
    def step_seconds(self) -> float:
        """The time below which the chip cannot do the last step."""
        return sum(p.roofline * count for p, count in self.step_programs)

    @property
    def step_mfu(self) -> float:
        """The share of the chip's peak that a step can reach at most."""
        flops = sum(p.flops * count for p, count in self.step_programs)
        return flops / (self.chip["bf16_flops"] * self.step_seconds) if self.step_seconds else 0.0

    def json(self) -> str:
        """Everything as JSON, with a summary first."""
        summary = {
            "ok": self.ok,
            "distinct_programs": len(self.programs),
            "hbm_bytes": self.hbm,
            "predicted_recompilations_per_step": len(self.recompilations),
            "step_roofline_seconds": self.step_seconds,
            "step_mfu_bound": self.step_mfu,
        }
        return json.dumps({"summary": summary, **asdict(self)}, indent=1)

    def html(self) -> str:
        """A page without any other file."""
        from torchtpu.diagnostics.preflight.html import page

        return page(self)

    def __str__(self) -> str:
        from torchtpu.diagnostics.preflight.text import plain

        return plain(self)


def noted(places: list[Place], what: str, where: str, step: int) -> Place:
    """The place of ``what`` at ``where``, counted once more in ``step``; a new one is appended."""
    found = next((p for p in places if (p.what, p.where) == (what, where)), None)
    if found is None:
        found = Place(what, where, source_line(where))
        places.append(found)
    found.steps[step] = found.steps.get(step, 0) + 1
    return found


def source_line(where: str) -> str:
    """The text of ``file:line``, or nothing."""
    import linecache

    path, _, line = where.rpartition(":")
    return linecache.getline(path, int(line)).strip() if line.isdigit() else ""


def shown(avals: Iterable[Any]) -> list[str]:
    """Inputs as ``float32[2,3]``."""
    return [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in avals]

"""One preflight from the run to the finished report, with progress; Ctrl-C ends a part, not the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from torchtpu import config
from torchtpu.runtime import topology

from . import advice, collect
from .compile import Worker, compile_all
from .record import EFFORTS, VALUES, ProgramReport, Report


class Flight:
    """The parts of one preflight."""

    def __init__(self, script: str, where: str, steps: int, values: str, effort: str) -> None:
        chip = topology.chip(where)
        if values not in VALUES:
            raise ValueError(f"torchtpu: unknown values {values!r}; choose one of {', '.join(VALUES)}")
        if effort not in EFFORTS:
            raise ValueError(f"torchtpu: unknown effort {effort!r}; choose one of {', '.join(EFFORTS)}")
        if steps < 1:
            raise ValueError(f"torchtpu: steps must be at least 1, not {steps}")
        self.topology = topology.Topology(where, (), chip)
        self.report = Report(script, where, asdict(chip), values, config.get_mode())
        self.report.effort = effort
        self.collector = collect.Collector(self.report, steps)

    def finish(self, run: Callable[[], None]) -> Report:
        """Run, compile, advise."""
        worker = Worker(self.topology.name, self.report.effort == "quick")
        worker.start()  # the compiler loads while the script runs
        try:
            self.collect(run)
            self.compile(worker)
        finally:
            worker.close()
        self.report.advice += advice.advise(self.report, self.collector.traced)
        return self.report

    def collect(self, run: Callable[[], None]) -> None:
        """Run the script; what it raises goes to the report."""
        import torch

        torch.empty(0, device="tpu")
        real = self.report.values == "cpu"
        around = topology.targeting if real else collect.untouched
        try:
            with around(self.topology), self.collector.active(real):
                run()
        except collect.Stop:
            pass
        except KeyboardInterrupt:
            self.report.stopped = "stopped during the run"
        except BaseException as error:
            self.report.failure = collect.user_failure(error)
        self.report.mode = config.get_mode()

    def compile(self, worker: Worker) -> None:
        """Compile what was collected; TorchTpuError if the compiler does not start."""
        target = worker.target()
        self.report.chip = asdict(target)
        try:
            with progress(len(self.report.programs)) as tell:
                compile_all(self.report, self.collector.traced, worker, target, tell)
        except KeyboardInterrupt:
            self.report.stopped = "stopped while programs were compiled"


@contextmanager
def progress(count: int) -> Iterator[Callable[[ProgramReport], None]]:
    """A bar on the terminal; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.fields[name]}"), console=console)
    with bar if console.is_terminal else nullcontext():
        task = bar.add_task("", total=count, completed=-1, name="")
        yield lambda program: bar.update(task, advance=1, name=program.name)

"""The ``torchtpu`` command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchtpu.diagnostics.preflight.record import EFFORTS, VALUES
from torchtpu.errors import TorchTpuError
from torchtpu.plugins import registry


@click.group()
def main() -> None:
    """TorchTPU: device="tpu" for PyTorch."""


def _pack_rows() -> list[dict[str, Any]]:
    rows = []
    for s in registry.statuses():
        hooks = [name.removeprefix("torchtpu_") for name, records in s.records.items() if records]
        row = {"name": s.name, "distribution": s.distribution, "version": s.version, "api": s.api}
        rows.append({**row, "hooks": hooks, "state": s.state, "reason": s.reason, "remedy": s.remedy})
    return rows


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def packs(as_json: bool) -> None:
    """List operator packs, and why one is not used."""
    rows = _pack_rows()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*("name", "distribution", "version", "API", "hooks", "state", "reason"))
    for row in rows:
        values = [", ".join(v) if isinstance(v, list) else str(v) for v in list(row.values())[:-1]]
        table.add_row(*map(escape, values))
    _print(table)


@main.command()
@click.option(
    "--markdown", is_flag=False, flag_value="docs/operators.md", help="Write the page to this file."
)
def ops(markdown: str | None) -> None:
    """List how each ATen operator is served on the device."""
    from torchtpu.diagnostics import coverage

    if markdown is not None:
        with open(markdown, "w", encoding="utf-8") as file:
            file.write(coverage.markdown())
    else:
        for name, status in coverage.report().items():
            click.echo(f"{status:12}{name}")
    click.echo(", ".join(f"{count} {name}" for name, count in coverage.counts().items()), err=True)


@main.command()
@click.option(
    "--freeze", type=click.Path(dir_okay=False, path_type=Path), help="Write the packs' fingerprints."
)
@click.option(
    "--frozen", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Compare with such a file."
)
def doctor(freeze: Path | None, frozen: Path | None) -> None:
    """Check versions, packs and the packs' own checks; exit code 1 if something is wrong."""
    from torchtpu.diagnostics import doctor as diagnosis

    found = diagnosis.findings()
    table = Table("level", "finding", "remedy", box=None)
    for finding in found:
        style = {"ok": "", "warn": "yellow", "error": "red"}[finding.level]
        table.add_row(finding.level, escape(finding.message), escape(finding.remedy), style=style)
    _print(table)
    told = []
    if freeze is not None:
        text = json.dumps(diagnosis.state(), indent=2, sort_keys=True) + "\n"
        _written(freeze, text)
    if frozen is not None:
        try:
            told = diagnosis.differences(json.loads(frozen.read_text("utf-8")), diagnosis.state())
        except (ValueError, OSError) as error:
            raise click.ClickException(f"{frozen} cannot be compared with: {error}") from error
        for line in told or [f"as frozen in {frozen}"]:
            click.echo(line)
    sys.exit(bool(told) or any(finding.level == "error" for finding in found))


def _written(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(str(error)) from error


def _print(table: Table) -> None:
    """Fit the terminal; a file or a pipe gets each row in one line, to be searched."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    console.print(table)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def explain(script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT and print each compilation and flush with its reason and line."""
    import runpy

    from torchtpu.diagnostics.explain import explain as watch

    sys.argv = [script, *args]
    with watch() as report:
        try:
            runpy.run_path(script, run_name="__main__")
        finally:
            click.echo(str(report), err=True)


def _choice(name: str, values: tuple[str, ...], text: str) -> Callable[[Any], Any]:
    """An option that takes one of ``values``, the first by default."""
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--topology", required=True, help="The slice to compile for, such as v5e:2x2 or v6e:2x4.")
@click.option("--steps", default=3, show_default=True, help="Optimizer steps to run.")
@_choice("--values", VALUES, "What results read as: zeros, which need no memory, or computed on the CPU.")
@_choice("--effort", EFFORTS, "How hard the compiler tries.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write JSON.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), help="Write a page.")
def preflight(
    script: Path, args: tuple[str, ...], topology: str, steps: int, values: str, effort: str,
    json_path: Path | None, html_path: Path | None,
) -> None:  # fmt: skip
    """Compile all that SCRIPT runs for a TPU that is not here; exit code 1 if something is wrong.

    A script for CUDA is run as one for the tpu device. Ctrl-C ends the run, or the compilation, and the report
    has what there is.
    """
    os.environ["TORCHTPU_PLATFORM"] = "cpu"  # a TPU that is here is left alone
    from torchtpu.diagnostics.preflight import preflight_script, text

    try:
        report = preflight_script(script, args, topology, steps, values, effort)
    except (TorchTpuError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    if console.is_terminal:
        console.print(text.render(report))
    else:
        click.echo(str(report))
    if json_path is not None:
        _written(json_path, report.json() + "\n")
    if html_path is not None:
        _written(html_path, report.html())
    sys.exit(not report.ok)


@main.command("new-pack")
@click.argument("name")
@click.option(
    "--path", "parent", default=".", type=click.Path(path_type=Path), help="Where to make the folder."
)
def new_pack(name: str, parent: Path) -> None:
    """Write a new operator pack NAME, with a kernel and its test, to begin from."""
    from torchtpu import newpack

    try:
        folder = newpack.write(name, parent)
    except (TorchTpuError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"wrote {folder}\nnext: pip install -e '{folder}[test]' && pytest {folder}")


@main.group()
def export() -> None:
    """Look at files of torchtpu.export, or compile them for a TPU that is not here."""


_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False))


@export.command()
@_FILE
def show(file: str) -> None:
    """List what the program in FILE takes and gives, its sizes, platforms and versions."""
    from torchtpu.export import text

    _told(lambda: text.render(file))


@export.command("compile")
@_FILE
@click.option("--topology", required=True, help="The slice to compile for, such as v5e:2x2 or v6e:2x4.")
def compile_export(file: str, topology: str) -> None:
    """Compile the program in FILE for a TPU that is not here, and print its costs."""
    os.environ["TORCHTPU_PLATFORM"] = "cpu"  # a TPU that is here is left alone
    from torchtpu.export import ahead, text

    _told(lambda: text.costs(topology, ahead.numbers(ahead.compile(file, topology))))


def _told(make: Callable[[], str]) -> None:
    try:
        click.echo(make())
    except (TorchTpuError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def run() -> None:
    """The console script: adds the packs' commands first."""
    for status in registry.statuses():
        if status.plugin is not None and hasattr(status.plugin, "torchtpu_commands"):
            status.plugin.torchtpu_commands(main)
    main()

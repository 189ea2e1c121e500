"""The ``torchtpu`` command."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from importlib import metadata
from typing import Any

import click
from rich.console import Console
from rich.table import Table

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
        table.add_row(*values)
    Console().print(table)


@main.command()
def ops() -> None:
    """List the operators that have a lowering."""
    names = sorted(registry.registry().lowerings)
    click.echo("\n".join(names))
    click.echo(f"{len(names)} overloads", err=True)


@main.command()
def doctor() -> None:
    """Check versions, packs and the packs' own checks; exit code 1 if something is wrong."""
    rows = [("ok", f"Python {platform.python_version()}")]
    for name in ("torch", "jax", "jaxlib", "torchtpu-core"):
        try:
            rows.append(("ok", f"{name} {metadata.version(name)}"))
        except metadata.PackageNotFoundError:
            rows.append(("error", f"{name} is not installed"))
    if importlib.util.find_spec("torch_tpu") is not None:
        rows.append(("error", "torch_tpu is installed as well: both claim the device; remove one"))
    for s in registry.statuses():
        level = "ok" if s.state in ("loaded", "off") else "error"
        rows.append(
            (level, f"pack {s.name} of {s.distribution} {s.version}: {s.state} {s.reason} {s.remedy}")
        )
    for check in registry.registry().others["torchtpu_checks"]:
        found = check.run()
        rows.append((found.level, f"{check.name}: {found.message} {found.remedy}"))
    for level, text in rows:
        click.echo(f"{level:6}{text.rstrip()}")
    sys.exit(any(level == "error" for level, _ in rows))


def run() -> None:
    """The console script: adds the packs' commands first."""
    for status in registry.statuses():
        if status.plugin is not None and hasattr(status.plugin, "torchtpu_commands"):
            status.plugin.torchtpu_commands(main)
    main()

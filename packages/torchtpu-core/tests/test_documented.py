"""Every hook, record, field and event is described where pack authors look."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from torchtpu import events
from torchtpu.plugins import hookspecs, records

PAGE = (Path(__file__).parents[3] / "docs" / "packs.md").read_text(encoding="utf-8")
HOOKS = [
    name for name, fn in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("torchtpu_")
]
RECORDS = [cls for _, cls in inspect.getmembers(records, dataclasses.is_dataclass)]


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_are_documented(hook):
    arguments = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert f"`{hook}({arguments})`" in PAGE


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_and_their_fields_are_documented(record):
    assert f"`{record.__name__}`" in PAGE
    assert not [f.name for f in dataclasses.fields(record) if f"`{f.name}`" not in PAGE]


@pytest.mark.parametrize("kind", events.KINDS)
def test_events_are_documented(kind):
    assert f"`{kind}`" in PAGE

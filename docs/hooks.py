"""Writes the reference when the site is built: signatures and docstrings as they are in the code."""

import functools
import importlib
import inspect
import re
from types import ModuleType

MARK = re.compile(r"^<!-- api: (\S+) -->$", re.M)


def on_page_markdown(markdown, **_):
    """Put the entries of a module, or the list of commands, in the place of each mark."""
    return MARK.sub(lambda m: commands() if m[1] == "commands" else entries(m[1]), markdown)


def public(module):
    """The names of a module that are its own and not underscored."""
    names = getattr(module, "__all__", None) or dir(module)
    return [name for name in names if not name.startswith("_") and not _foreign(getattr(module, name))]


def _foreign(value):
    home = getattr(value, "__module__", "")
    return isinstance(value, ModuleType) or not str(home).startswith("torchtpu")


def entries(name):
    """One section for each public name of a module."""
    if name.startswith("torch."):
        module = functools.reduce(getattr, name.split(".")[1:], importlib.import_module("torch"))
    else:
        module = importlib.import_module(name)
    seen, parts = {}, []
    for short in sorted(public(module), key=str.lower):
        value = getattr(module, short)
        first = seen.setdefault(id(value), short)
        body = f"The same as `{name}.{first}`." if first != short else _body(value)
        link = f'{{ #{name}.{short} data-toc-label="{short}" }}'
        parts.append(f"### `{name}.{short}{_signature(value)}` {link}\n\n{body}")
    return "\n\n".join(parts)


def _signature(value):
    if hasattr(value, "__members__"):  # an enumeration's call is no way to make one
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare)) if callable(value) else ""


def _body(value):
    lines = [f"- `{name}`: {_text(member)}" for name, member in _members(value)]
    lines += [
        f"- `{member.name}`, `{member.value!r}`" for member in getattr(value, "__members__", {}).values()
    ]
    return "\n\n".join([_text(value), *(["\n".join(lines)] if lines else [])])


def _members(value):
    """The public methods and properties that a class defines, and their names."""
    if not inspect.isclass(value):
        return []
    found = [(name, member) for name, member in vars(value).items() if not name.startswith("_")]
    return [(n, m) for n, m in found if isinstance(m, property) or (inspect.isroutine(m) and m.__doc__)]


def _text(value):
    """A docstring as Markdown."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"^Example:\n((?: {4}.*\n?)+)", _example, text, flags=re.M)


def _example(found):
    return "\n```python\n" + inspect.cleandoc("\n" + found[1]) + "\n```\n"


def commands():
    """The commands of `torchtpu`, those of installed packs included."""
    cli = importlib.import_module("torchtpu.cli")
    rows = ["| command | what it does |", "| --- | --- |"]
    for name, command in sorted(cli.main.commands.items()):
        usage = " ".join(p.human_readable_name for p in command.params if p.param_type_name == "argument")
        rows.append(f"| `torchtpu {f'{name} {usage}'.strip()}` | {command.help.splitlines()[0]} |")
    return "\n".join(rows)

"""Write docs/reference/cli.md from the commands' help, so that the page cannot drift from it.

Without arguments it writes the page; with ``--check`` it only says whether the page is up to
date. Nothing of click's formatting is used, so its version does not change the page.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rulvar.cli.config import ENVIRONMENT
from rulvar.cli.exit_codes import MEANINGS
from rulvar.cli.external_commands import OpenGroup
from rulvar.cli.main import BUILT_IN
from rulvar.cli.main import main as root
from rulvar.core.plugins import installed_commands

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"

HEAD = f"""\
# The command line

<!-- Written by scripts/gen_cli_docs.py from the commands' help: change it there. -->

`pip install "rulvar-cli[sqlite]"` installs the command `rulvar`; from a checkout it is
`pip install ./packages/core ./packages/store-sqlite ./packages/cli`. In the repository itself
`hatch run rulvar` has everything.

## Where the store and the workflows come from

| setting | flag | environment | `[tool.rulvar]` in pyproject.toml |
| --- | --- | --- | --- |
| the store | `--store URL` | `{ENVIRONMENT["store"]}` | `store = "sqlite:///runs.db"` |
| the workflows | `--app MODULE[:ATTR]` | `{ENVIRONMENT["app"]}` | `app = "flows:count"` |

The flag wins over the environment, and that over the file. The file is the nearest
pyproject.toml, in the current folder or above it, that has a `[tool.rulvar]` table. Its values
are read as if they were typed in that folder: the module is looked up there, and a relative path
in the URL starts there. Flag and environment start from the current folder.

`MODULE` takes every workflow that the module holds, `MODULE:ATTR` one workflow or an iterable of
them. The folder that the setting was read from is first on Python's path.

## Store URLs

| URL | what it opens | comes with |
| --- | --- | --- |
| `sqlite:///runs.db` | a database file, for any number of processes | `rulvar-store-sqlite` |
| `file:///runs` | a [folder](../stores/file-store.md), for one process | `rulvar-store-file` |
| `memory://` | nothing that outlives its process | `rulvar-core` |

Three slashes begin a relative path, four an absolute one: `sqlite:////var/lib/runs.db`. Options
follow a question mark, as in `sqlite:///runs.db?lease_ttl_ms=30000&durability=normal`; one that
the store does not know is refused. SQLite has `lease_ttl_ms`, `busy_timeout_ms`,
`open_timeout_ms`, `durability` and `allow_network_filesystem`, which
[Durability and the fence](../operate/durability.md) explains, and `read_only=true`, to look at a
file that is there. The file store has `durability`, `read_only` and `permissions`.
`rulvar stores` lists what is installed.

## Output

Results go to standard output, messages to standard error. A run's result is printed as JSON, so
that it can be piped. Colour is off when the output is not a terminal and when `NO_COLOR` is set; in
a pipe, a row of a table is one line, however wide.

With `--json` standard output carries one JSON document and nothing else; `rulvar worker` writes
JSON Lines. The names of the fields are those of the Python records. An error has this form, with
the exit status that it always has:

```json
{{"error": {{"code": "lease-held", "message": "...", "retryable": true, "reason": "held"}}}}
```

An error is one sentence that says what is wrong and what to do; `--debug` adds the traceback on
standard error.

## Exit status

| status | meaning |
| --- | --- |
"""

COMMANDS_OF_OTHERS = """\
## Commands of other distributions

They are available when their distribution, which each names, is installed beside `rulvar-cli`.
"""

ADDING = """\
## Adding a command

A distribution adds a command by an entry point in the group `rulvar.commands`: the name is the
command's, the value a `click.Command`. A dot in the name puts it into a group that there is:
`runs.repair-file` is `rulvar runs repair-file`.

```toml
[project.entry-points."rulvar.commands"]
greet = "acme_tools.commands:greet"
```

It is imported when it is called, and when `rulvar --help` lists it. A command that does not load is
listed as broken and does not affect the others. The name of a built-in command cannot be taken.
`rulvar.cli.options` has the decorators `output_options`, `store_option` and `app_option` for the
options that all commands share.
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD.rstrip("\n")]
    parts += [f"| {status.value} | {meaning} |" for status, meaning in MEANINGS.items()]
    parts += ["", "## Commands", ""]
    guests = contributed()
    for path, command in leaves(root, "rulvar", guests.keys()):
        if path not in guests:
            parts += [*section(path, command), ""]
    parts += [COMMANDS_OF_OTHERS]
    for path, command in leaves(root, "rulvar", guests.keys()):
        if path in guests:
            parts += [*section(path, command, guests[path]), ""]
    return "\n".join([*parts, ADDING])


def contributed() -> dict[str, str]:
    """Return the commands that other distributions of this repository add, and by which.

    What else is installed is no part of the page.
    """
    members = {_name_of(path) for path in ROOT.glob("packages/*/pyproject.toml")}
    return {
        f"rulvar {each.name.replace('.', ' ')}": each.distribution
        for each in installed_commands()
        if each.distribution in members
    }


def _name_of(project: Path) -> str:
    return str(tomllib.loads(project.read_text("utf-8"))["project"]["name"])


def leaves(
    command: click.Command, path: str, guests: Collection[str]
) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that do something, ours and the guests', in the order of the help."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ours: Collection[str] = BUILT_IN if command is root else command.commands
    if isinstance(command, OpenGroup):
        ours = command.own_commands()
    context = click.Context(command)
    for name in command.list_commands(context):
        there = f"{path} {name}"
        if name in ours or there in guests:
            child = command.get_command(context, name)
            assert child is not None, there
            yield from leaves(child, there, guests)


def section(path: str, command: click.Command, distribution: str = "") -> list[str]:
    """Return one command's part of the page; ``distribution`` is named where it is not ours."""
    pieces = command.collect_usage_pieces(click.Context(command))
    lines = [f"### {path}", "", "```text", " ".join([path, *pieces]), "```", ""]
    if distribution:
        lines += [f"From `{distribution}`.", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *examples = paragraph.removeprefix("\b\n").splitlines()
            lines += [title, "", "```sh", *(example.strip() for example in examples), "```", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    options = [each for each in command.params if isinstance(each, click.Option)]
    lines += ["| option | |", "| --- | --- |"]
    return lines + [option_row(option) for option in options]


def option_row(option: click.Option) -> str:
    """Return one row of a command's table of options."""
    value = "" if option.is_flag else f" {option.metavar or kind_of(option)}"
    notes = [option.help or ""]
    if option.envvar is not None:
        notes.append(f"Environment: `{option.envvar}`.")
    if option.show_default and not option.is_flag:
        notes.append(f"Default: {option.default}.")
    if option.multiple and not {"several", "repeatable"} & set(re.findall(r"\w+", notes[0])):
        notes.append("May be given several times.")
    names = ", ".join(option.opts)
    value = value.replace("|", "\\|")  # or the table would end its column there
    return f"| `{names}{value}` | {' '.join(notes)} |"


def kind_of(option: click.Option) -> str:
    """Return what stands for an option's value."""
    if isinstance(option.type, click.Choice):
        return "|".join(str(each) for each in option.type.choices)
    return "N" if isinstance(option.type, click.IntRange) else "TEXT"


def main() -> int:
    """Write the page, or check it."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"{PAGE} is not up to date: python scripts/gen_cli_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

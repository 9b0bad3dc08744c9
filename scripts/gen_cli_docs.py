"""Write docs/cli.md from the commands' own help, so that the page cannot drift from it.

Without arguments it writes the page; with ``--check`` it only says whether the page is up to
date. Nothing of click's formatting is used, so its version does not change the page.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rulvar.cli.config import ENVIRONMENT
from rulvar.cli.exits import MEANINGS
from rulvar.cli.main import BUILT_IN
from rulvar.cli.main import main as root

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"

HEAD = f"""\
# The command line

<!-- Written by scripts/gen_cli_docs.py from the commands' help: change it there. -->

`pip install "rulvar-cli[sqlite]"` installs the command `rulvar`.

## Where the store and the workflows come from

| setting | flag | environment | `[tool.rulvar]` in pyproject.toml |
| --- | --- | --- | --- |
| the store | `--store URL` | `{ENVIRONMENT["store"]}` | `store = "sqlite:///runs.db"` |
| the workflows | `--app MODULE[:ATTR]` | `{ENVIRONMENT["app"]}` | `app = "flows:count"` |

The flag wins over the environment, and that over the file. The file is the nearest
pyproject.toml, in the current folder or above it, that has a `[tool.rulvar]` table. What it says
is read as if it were typed in its own folder: the module is looked up there, and a relative path
in the URL starts there. Flag and environment start from the current folder.

`MODULE` takes every workflow that the module holds, `MODULE:ATTR` one workflow or an iterable of
them. The folder that the setting was read from goes first on Python's path.

## Output

Results go to standard output, messages to standard error. A run's result is printed as JSON, so
that it can be piped. Colour is off when the output is no terminal and where `NO_COLOR` is set; in
a pipe, a row of a table is one line, however wide.

With `--json` standard output carries one JSON document and nothing else; `rulvar worker` writes
JSON Lines. The names of the fields are those of the Python records. An error has this form, with
the exit status that it always has:

```json
{{"error": {{"code": "lease-held", "message": "...", "retryable": true, "reason": "held"}}}}
```

What is wrong is said in one sentence with its remedy; `--debug` adds the traceback on standard
error.

## Exit status

| status | meaning |
| --- | --- |
"""

COMMANDS_OF_OTHERS = """\
## Commands of other distributions

A distribution adds a command by an entry point in the group `rulvar.commands`: the name is the
command's, the value a `click.Command`.

```toml
[project.entry-points."rulvar.commands"]
greet = "acme_tools.commands:greet"
```

It is imported when it is called, and when `rulvar --help` lists it. One that does not load is
listed as broken and stops no other. The name of a built-in command cannot be taken.
`rulvar.cli.options` has the decorators `output_options`, `store_option` and `app_option` for the
options that all commands share.
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD.rstrip("\n")]
    parts += [f"| {status.value} | {meaning} |" for status, meaning in MEANINGS.items()]
    parts += ["", "## Commands", ""]
    for path, command in leaves(root, "rulvar"):
        parts += [*section(path, command), ""]
    return "\n".join([*parts, COMMANDS_OF_OTHERS])


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield our own commands that do something, in the order of the help."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and (command is not root or name in BUILT_IN):
            yield from leaves(child, f"{path} {name}")


def section(path: str, command: click.Command) -> list[str]:
    """Return one command's part of the page."""
    pieces = command.collect_usage_pieces(click.Context(command))
    lines = [f"### {path}", "", "```text", " ".join([path, *pieces]), "```", ""]
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
    if option.multiple and "several" not in notes[0]:
        notes.append("May be given several times.")
    names = ", ".join(option.opts)
    return f"| `{names}{value}` | {' '.join(notes)} |"


def kind_of(option: click.Option) -> str:
    """Return what stands for an option's value."""
    if isinstance(option.type, click.Choice):
        return "STATUS"
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

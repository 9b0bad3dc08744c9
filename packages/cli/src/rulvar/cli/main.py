"""The command `rulvar`: a group that imports a command only when it is called.

``rulvar --help`` imports neither the engine nor a store: the summaries of the built-in
commands stand in a table here, and a test holds them equal to the commands' own. Commands
of other distributions are looked up in the metadata (entry-point group ``rulvar.commands``)
and loaded when they are called, or listed by ``--help``. One that is broken is shown as
broken and affects no other; built-in names cannot be overridden.
"""

from __future__ import annotations

import importlib
import io
import linecache
import os
import sys
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import click

from rulvar.cli.exit_codes import MEANINGS, ExitStatus, status_of_error
from rulvar.cli.external_commands import (
    load_other,
    other_commands,
    refuse_uninstalled,
    summary_of_other,
)
from rulvar.cli.options import output_of, output_options
from rulvar.cli.output import Output, OutputLostError
from rulvar.core.errors import RulvarError
from rulvar.core.formatting import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["BUILT_IN", "BuiltIn", "RootGroup", "main"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A command of this distribution: its section in the help, where it is, what it does."""

    section: str
    target: str
    summary: str


_RUNS = "Runs"
_DEPLOYMENT = "Deployment"
_OTHERS = "Commands of other distributions"

BUILT_IN: dict[str, BuiltIn] = {
    "run": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.run:run",
        "Start a run of WORKFLOW and wait for its outcome.",
    ),
    "resume": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.run:resume",
        "Resume RUN_ID from its journal and wait for its outcome.",
    ),
    "worker": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.worker:worker",
        "Execute the runs of the app that wait for a worker.",
    ),
    "resolve": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.answer:resolve",
        "Answer the wait of RUN_ID for KEY.",
    ),
    "cancel": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.answer:cancel",
        "Cancel RUN_ID.",
    ),
    "replay": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.replay:replay",
        "Check whether the present code can replay the journals of runs.",
    ),
    "runs": BuiltIn(
        _RUNS,
        "rulvar.cli.commands.runs:runs",
        "List, show, audit, retry and delete runs.",
    ),
    "store": BuiltIn(
        _DEPLOYMENT,
        "rulvar.cli.commands.store_copy:store",
        "Move runs between stores.",
    ),
    "stores": BuiltIn(
        _DEPLOYMENT,
        "rulvar.cli.commands.stores:stores",
        "List the stores that are installed.",
    ),
    "fencing": BuiltIn(
        _DEPLOYMENT,
        "rulvar.cli.commands.fencing:fencing",
        "Check that a store fences every write.",
    ),
    "version": BuiltIn(
        _DEPLOYMENT,
        "rulvar.cli.commands.version:version",
        "Show the versions of the command, the core and Python.",
    ),
}


def _exit_table() -> str:
    rows = "\n".join(f"  {status:>3}  {meaning}" for status, meaning in MEANINGS.items())
    return f"\b\nExit status:\n{rows}"


class RootGroup(click.Group):
    """The lazy group, and the one place where an error becomes an exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401 - click's own signature
    ) -> NoReturn:
        """Run the command line and leave with its exit status."""
        del standalone_mode
        _open_what_is_closed()
        given = list(sys.argv[1:] if args is None else args)
        # The errors of parsing come before any option's callback: look for the flag itself.
        output = Output(json="--json" in given[: given.index("--") if "--" in given else None])
        try:
            with _own_warnings(output):
                # With standalone_mode off, an exit() comes back as the returned status.
                status = super().main(
                    given,
                    prog_name or "rulvar",
                    complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    obj=output,
                    **extra,
                )
        except click.Abort:
            output.note("interrupted")
            status = ExitStatus.INTERRUPTED
        except click.ClickException as error:
            status = _show_usage(error, output)
        except RulvarError as error:
            _report(output, partial(output.failure, error))
            status = status_of_error(error)
        except OutputLostError as error:
            status = _give_up_output(error, output)
        except Exception as error:  # noqa: BLE001 - shown whole, with exit status 70
            output.trace(error)
            status = ExitStatus.INTERNAL
        number = int(status) if isinstance(status, int) else 0
        if args is None and "rulvar.cli.running" in sys.modules:
            # This process has run user code, which must not keep it alive.
            sys.modules["rulvar.cli.running"].leave(number)
        sys.exit(number)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - as click has it
    ) -> click.Context:
        """Parse the arguments; the root's own help is printed here."""
        with _help_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> None:
        """Call the command; its return value is ignored, only ``ctx.exit`` sets a status."""
        with _help_errors():
            super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our names in their order, then the others'."""
        return [*super().list_commands(ctx), *BUILT_IN, *_other_names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None when there is none of that name.

        Raises `PluginError` for another distribution's command that does not load.
        """
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name].target.partition(":")
            return cast("click.Command", getattr(importlib.import_module(module), attribute))
        if cmd_name in _other_names():
            return load_other(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one of ours that is not installed is named with its distribution."""
        refuse_uninstalled(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section; loads those of other distributions, never ours."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, built_in in BUILT_IN.items():
            sections.setdefault(built_in.section, []).append((name, built_in.summary))
        for name in _other_names():
            sections.setdefault(_OTHERS, []).append((name, summary_of_other(name)))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)
        for warning in _shadow_warnings():
            output_of(ctx).note(f"warning: {warning}")


def _open_what_is_closed() -> None:
    """Let the null device stand for a standard stream that was closed.

    Otherwise the next file that is opened gets its number, and a stray print lands in it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


@contextmanager
def _own_warnings(output: Output) -> Iterator[None]:
    """Show a warning of ours as every other message, without the line of code behind it."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_ours(  # noqa: PLR0917 - the signature is Python's
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category.__module__.startswith("rulvar."):
                output.note(f"warning: {message}")
            else:
                code = linecache.getline(filename, lineno) if line is None else line
                said = plain_lines(str(message)), category, plain(filename), lineno
                show(*said, file, plain_lines(code))

        warnings.showwarning = show_ours
        yield


def _report(output: Output, report: Callable[[], None]) -> None:
    """Report an error; when standard output is lost, its exit status still is not."""
    try:
        report()
    except OutputLostError as lost:
        _give_up_output(lost, output)


@contextmanager
def _help_errors() -> Iterator[None]:
    """Raise `OutputLostError` when click could not print a help or a version."""
    try:
        yield
    except OSError as error:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        if click.echo.__code__ in frames:
            raise OutputLostError(error) from error
        raise


def _give_up_output(lost: OutputLostError, output: Output) -> int:
    if lost.is_wanted:
        output.note(f"error: {lost}")
    # What is left in the buffer would fail again when Python exits, and change the status.
    sys.stdout = io.StringIO()
    return ExitStatus.OUTPUT_LOST


def _show_usage(error: click.ClickException, output: Output) -> int:
    if output.json:
        # NoArgsIsHelpError carries the whole help as its message: its first line will do.
        message = error.format_message().strip() or "no command is given"
        document = {"error": {"code": "usage", "message": message, "retryable": False}}
        _report(output, partial(output.document, document))
    else:
        shown = io.StringIO()
        _on_one_line(error).show(shown)
        output.raw_note(shown.getvalue())
    return error.exit_code


def _on_one_line(error: click.ClickException) -> click.ClickException:
    """Keep an argument that a message quotes from beginning a line; old releases of click do."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    # The only lines of click's own are those of a list of choices.
    message = plain(error.format_message().replace("\n\t", " "))
    if isinstance(error, click.UsageError):
        return click.UsageError(message, error.ctx)
    return click.ClickException(message)


# --- commands of other distributions --------------------------------------------------------


def _other_names() -> list[str]:
    return [name for name in other_commands() if name not in BUILT_IN]


def _shadow_warnings() -> list[str]:
    from rulvar.core.plugins import installed_commands  # noqa: PLC0415

    return [
        f"{each.distribution} offers a command {each.name!r}, which is rulvar's own: ignored"
        for each in installed_commands()
        if each.name in BUILT_IN
    ]


@click.group(
    "rulvar",
    cls=RootGroup,
    epilog=_exit_table(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, value: _show_version(context) if value else None,
    help="Show the installed versions and exit.",
)
@output_options
def main() -> None:
    """Run durable workflows and manage their runs.

    A run survives its worker: the next worker resumes it from its journal, and a worker that
    wakes up late cannot change it any more.

    \b
    Examples:
      rulvar run count --app flows --store sqlite:///runs.db --args '"src"'
      rulvar worker --app flows --store sqlite:///runs.db
      rulvar runs ls --status running
      rulvar fencing check --probe
    """  # noqa: D301 - click's mark for text that is not to be wrapped


def _show_version(context: click.Context) -> NoReturn:
    from rulvar.cli.commands.version import show_versions  # noqa: PLC0415 - only when asked

    show_versions(output_of(context))
    context.exit()

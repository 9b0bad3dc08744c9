"""The output of every command: text for people, JSON for programs.

Under ``--json`` standard output carries one JSON document (or JSON Lines for a stream) and
nothing else. Otherwise the result goes to standard output and messages to standard error,
so that a result can be piped. Colour is off when the output is not a terminal, and where
``NO_COLOR`` is set. Tables fold to the terminal's width; in a pipe a row stays one line.

Everything that is printed passes `_write_text`, and leaves it without control
characters, bidi controls, zero widths and line separators: those are shown as escapes (in JSON
as JSON's own). A run's name must not be able to move the cursor, a result not to turn the line
around. Text printed on one line is `plain`, so that it cannot begin another.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from rulvar.cli.view.tables import lines_of
from rulvar.core.formatting import plain, plain_json, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.spinner import Spinner
    from rich.text import Text

    from rulvar.cli.view.tables import Renderable
    from rulvar.core.errors import RulvarError

__all__ = [
    "Bar",
    "ListDocument",
    "Output",
    "OutputLostError",
    "Progress",
    "ago",
    "error_document",
    "plain",
    "size",
    "span",
]

_PIPE_WIDTH = 10_000
_LONG_LIST = 1_000
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


@dataclass(slots=True)
class Progress:
    """A progress line; silent unless standard error is a terminal."""

    spinner: Spinner | None = None

    def update(self, text: str) -> None:
        """Show ``text`` in place of what stood there."""
        if self.spinner is not None:
            self.spinner.update(text=_text(text))


@dataclass(slots=True)
class Bar:
    """A progress bar; silent unless standard error is a terminal."""

    move: Callable[[int], None] | None = None

    def update(self, done: int) -> None:
        """Show that ``done`` of them are done."""
        if self.move is not None:
            self.move(done)


class OutputLostError(Exception):
    """The operation itself succeeded; its output could not be written."""

    def __init__(self, error: OSError) -> None:
        """Keep what the operating system said."""
        message = (
            f"standard output cannot be written ({error.strerror}); the operation itself is not "
            "affected"
        )
        super().__init__(message)
        # A reader that closed its pipe (head) has all that it wants.
        self.is_wanted = not isinstance(error, BrokenPipeError)


@dataclass(slots=True)
class Output:
    """The output of one invocation: set once from ``--json`` and ``--debug``."""

    json: bool = False
    debug: bool = False
    _unfinished: ListDocument | None = None

    def show(self, document: object, human: Callable[[], Renderable]) -> None:
        """Print the result: ``document`` under ``--json``, what ``human`` makes otherwise."""
        if self.json:
            self.document(document)
        else:
            self.print(human())

    def document(self, value: object) -> None:
        """Print one JSON document, indented."""
        _write(value, indent=True)

    def list_document(self, name: str) -> ListDocument:
        """Return a JSON document whose one long list is printed as it is found."""
        self._unfinished = ListDocument(name)
        return self._unfinished

    def line(self, value: object) -> None:
        """Print one line of JSON Lines, at once."""
        _write(value, indent=False)

    def print(self, renderable: Renderable) -> None:
        """Print text, a table, or several of them to standard output, each with its lines."""
        if isinstance(renderable, str):
            _write_out(renderable + "\n")
            return
        width, coloured = _manner(sys.stdout)
        lines = lines_of(renderable, width=width, coloured=coloured)
        _write_out("\n".join(lines) + "\n", coloured=coloured)

    def note(self, text: str) -> None:
        """Print a message to standard error; a failure to print it is ignored."""
        with suppress(OSError):
            _write_text(sys.stderr, plain(text) + "\n")

    def failure(self, error: RulvarError) -> None:
        """Print an error: one sentence and its remedy, and under ``--json`` its facts.

        ``--debug`` adds the traceback on standard error. A document whose list is partly
        printed ends with the error as one of its members.
        """
        if self.debug:
            self.trace(error)
        if self._unfinished is not None and self._unfinished.is_open:
            self._unfinished.end(error_document(error))
        elif self.json:
            self.document(error_document(error))
        else:
            self.note(f"error: {error}")

    def trace(self, error: BaseException) -> None:
        """Print an exception's traceback to standard error; a failure to print it is ignored."""
        self.raw_note("".join(traceback.format_exception(error)))

    def raw_note(self, text: str) -> None:
        """Print text of several lines to standard error; a failure to print it is ignored."""
        with suppress(OSError):
            _write_text(sys.stderr, text)

    @contextmanager
    def engine_log(self) -> Iterator[None]:
        """Show on standard error what the engine logs while the block runs.

        Warnings by default; ``--debug`` adds the rest, where a body's own traceback is.
        """
        logger, handler = logging.getLogger("rulvar"), logging.StreamHandler(sys.stderr)
        handler.setFormatter(_LogFormatter("%(levelname)s %(name)s: %(message)s"))
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if self.debug else logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)

    @property
    def is_interactive(self) -> bool:
        """Whether progress is shown: standard error is a terminal, and not ``--json``."""
        return not self.json and sys.stderr.isatty()

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Bar]:
        """Show a bar that fills while the block runs: on a terminal only."""
        if not self.is_interactive:
            yield Bar()
            return
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415 - as in _console

        moving = RichProgress(
            *RichProgress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=_console(sys.stderr),
            transient=True,
        )
        task = moving.add_task(title, total=total)
        with moving:
            yield Bar(lambda done: moving.update(task, completed=done))

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show a line that changes while the block runs: on a terminal only."""
        if not self.is_interactive:
            yield Progress()
            return
        from rich.live import Live  # noqa: PLC0415 - as in _console
        from rich.spinner import Spinner  # noqa: PLC0415

        spinner = Spinner("dots", text=_text("no steps done yet"))
        # What a step prints keeps its way when standard output goes somewhere else.
        to_terminal = sys.stdout.isatty()
        with Live(
            spinner,
            console=_console(sys.stderr),
            transient=True,
            refresh_per_second=10,
            redirect_stdout=to_terminal,
        ):
            yield Progress(spinner)


@dataclass(slots=True)
class ListDocument:
    """One JSON object, ``{NAME: [...], ...}``, whose list is printed as its members are found.

    A list that was added at once is printed as any document is; of a longer one each member
    stands on one line, and none is kept.
    """

    name: str
    _begun: bool = False
    _held: list[object] | None = None

    @property
    def is_open(self) -> bool:
        """Whether something was added, and the document has not ended."""
        return self._begun or self._held is not None

    def add(self, members: Sequence[object]) -> None:
        """Add members; those of the first call are printed when more follow, or the end."""
        if self._held is None and not self._begun:
            self._held = list(members)
            return
        if self._held is not None:
            held, self._held = self._held, None
            _write_out(f"{{\n  {json.dumps(self.name)}: [")
            self._begun = True
            self._print(held, "")
        self._print(members, ",")

    def end(self, rest: Mapping[str, object]) -> None:
        """Print what stands behind the list, and the end of the document."""
        if not self._begun:
            held, self._held = self._held or [], None
            _write({self.name: held} | dict(rest), indent=True)
            return
        self._begun = False
        _write_out("\n  ]")
        for name, value in rest.items():
            _write_out(",\n")
            _write_out(_shown(partial(_member, name, value)))
        _write_out("\n}\n")

    @staticmethod
    def _print(members: Sequence[object], comma: str) -> None:
        def text(ascii_only: bool) -> str:
            return ",".join(f"\n    {_compact(each, ascii_only)}" for each in members)

        if members:
            _write_out(comma + _shown(text))


def error_document(error: RulvarError) -> dict[str, object]:
    """Return an error as ``{"error": {"code", "message", "retryable", facts...}}``."""
    facts = {name: _fact(value) for name, value in vars(error).items() if name[0] != "_"}
    head = {"code": error.code, "message": str(error), "retryable": error.retryable}
    return {"error": head | facts}


def _fact(value: object) -> object:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [_fact(each) for each in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        pairs = cast("Mapping[object, object]", value).items()
        return {str(name): _fact(each) for name, each in pairs}
    return str(value)


class _LogFormatter(logging.Formatter):
    """Shows what is logged; whatever a message quotes begins no line and moves no cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the message on one line."""
        return plain(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, and below it the traceback."""
        return plain_lines(super().format(record))


def _write(value: object, *, indent: bool) -> None:
    _write_out(_shown(partial(_indented if indent else _compact, value)) + "\n")


def _shown(text_of: Callable[[bool], str]) -> str:
    """Return JSON text as standard output takes it; the argument asks for ASCII alone."""
    text = text_of(False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = text_of(True)
    return plain_json(text)


def _compact(value: object, ascii_only: bool) -> str:
    separators = (",", ":")
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=separators)


def _indented(value: object, ascii_only: bool) -> str:
    """Return JSON indented by two; of a very long list in an object, each member on one line.

    The library's fast encoder cannot indent, and twenty thousand calls need no indentation.
    """
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=2)
    members = []
    for name, member in cast("dict[str, object]", value).items():
        if isinstance(member, list) and len(member) > _LONG_LIST:
            lines = [_compact(each, ascii_only) for each in cast("list[object]", member)]
            text = "[\n    " + ",\n    ".join(lines) + "\n  ]"
        else:
            members.append(_member(name, member, ascii_only))
            continue
        members.append(f"  {json.dumps(name, ensure_ascii=ascii_only)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}" if members else "{}"


def _member(name: str, value: object, ascii_only: bool) -> str:
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=2)
    return f"  {json.dumps(name, ensure_ascii=ascii_only)}: " + text.replace("\n", "\n  ")


def _write_out(text: str, *, coloured: bool = False) -> None:
    with _lost_output():
        _write_text(sys.stdout, text, coloured=coloured)


@contextmanager
def _lost_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputLostError(error) from error


def _write_text(stream: TextIO, text: str, *, coloured: bool = False) -> None:
    """Print text without control characters; ``coloured`` keeps our own colour codes."""
    encoding = stream.encoding or "ascii"
    parts = _COLOUR.split(text) if coloured else [text]
    text = "".join(part if at % 2 else plain_lines(part) for at, part in enumerate(parts))
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _text(text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415 - as in _console

    return Text(plain(text), overflow="ellipsis", no_wrap=True)


def _manner(stream: TextIO) -> tuple[int | None, bool]:
    """Return how wide the stream is, None for a pipe, and whether it takes colours."""
    is_terminal = stream.isatty()
    if not is_terminal and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        return None, False
    console = _console(stream)
    coloured = console.color_system is not None and not console.no_color
    return console.width if is_terminal else None, coloured


def _console(stream: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415 - not for --json, --version and errors

    return Console(
        file=stream,
        width=None if stream.isatty() else _PIPE_WIDTH,
        emoji=False,
        markup=False,
        highlight=False,
        soft_wrap=False,
    )


def size(count: int) -> str:
    """Return a number of bytes for people: ``512 B``, ``1.5 KiB``."""
    if count < 1024:  # noqa: PLR2004 - the unit's own size
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:  # noqa: PLR2004
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def span(milliseconds: int) -> str:
    """Return a duration for people: ``12 ms``, ``3.4 s``, ``5 min 2 s``, ``3 h 20 min``."""
    sign = "-" if milliseconds < 0 else ""
    whole = abs(milliseconds)
    if whole < 1000:  # noqa: PLR2004 - the units' own sizes
        return f"{sign}{whole} ms"
    if whole < 60_000:  # noqa: PLR2004
        return f"{sign}{whole / 1000:.1f} s"
    minutes, seconds = divmod(whole // 1000, 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{sign}{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:  # noqa: PLR2004
        return f"{sign}{hours} h {minutes} min"
    return f"{sign}{hours // 24} d {hours % 24} h"


def ago(then_ms: int, now_ms: int) -> str:
    """Return how long ago ``then_ms`` was, or how far ahead it lies (both Unix ms)."""
    if then_ms > now_ms:
        return f"in {span(then_ms - now_ms)}"
    return f"{span(now_ms - then_ms)} ago"

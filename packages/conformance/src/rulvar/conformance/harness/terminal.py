"""What the commands of this distribution share: a switch, and a line that tells how far it is."""

from __future__ import annotations

import sys
import threading
import time

import click

__all__ = ["ChangingLine", "debug_option"]

_PLAIN_EVERY_S = 5.0


class ChangingLine:
    """Shows how far it is on standard error: one changing line, or a line now and then.

    ``width`` is how many characters a terminal is given. It may be written from any thread.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._lock = threading.Lock()
        self._tty = sys.stderr.isatty()
        self._told_at = time.monotonic()

    def write(self, text: str) -> None:
        """Show ``text`` now, or, where nobody watches, when the last line is old enough."""
        with self._lock:
            if self._tty:
                sys.stderr.write(f"\r{text:<{self._width}.{self._width}}")
            elif time.monotonic() - self._told_at >= _PLAIN_EVERY_S:
                self._told_at = time.monotonic()
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave an empty line where the changing one was."""
        if self._tty:
            sys.stderr.write(f"\r{'':<{self._width}}\r")


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    # The command line that a command is added to has a switch of that name.
    if value and hasattr(context.obj, "debug"):
        context.obj.debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Show the traceback of an error.",
)

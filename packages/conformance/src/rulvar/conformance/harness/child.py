"""The other process: opens stores, makes the calls that it is sent, and answers.

`main` is all that the process runs. Messages are pickled, each after its
length in eight bytes. What a store prints goes to standard error, not into the answers.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.core.stores import Stores

__all__ = ["IN_CHILD", "ForeignError", "main", "receive", "send"]

HANDLES_ANSWERS = False
"""What goes wrong in this module is the kit's fault, and never an answer of a store."""

IN_CHILD = "RULVAR_CONFORMANCE_CHILD"
"""Set in the environment of a process that the kit started."""


class ForeignError(Exception):
    """An exception that cannot travel: its type and text."""


def send(channel: BinaryIO, message: object) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    channel.write(len(data).to_bytes(8, "big") + data)
    channel.flush()


def receive(channel: BinaryIO) -> object:
    """Read one message. Raises ``EOFError`` when the other side is gone."""
    head = channel.read(8)
    if len(head) < 8:  # noqa: PLR2004 - the length of a length
        raise EOFError
    return pickle.loads(channel.read(int.from_bytes(head, "big")))  # noqa: S301 - our own process


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - just made
    except Exception:  # noqa: BLE001 - whatever its pickling raises, it cannot travel
        return ForeignError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    return error


_PARTS = ("journal", "transcripts")


def _methods(store: object) -> frozenset[str]:
    names = [name for name in dir(store) if not name.startswith("_")]
    return frozenset(name for name in names if callable(getattr(store, name, None)))


class _Server:
    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._stores: Stores | None = None

    def perform(self, message: tuple[object, ...]) -> object:
        """Make one call and return its value."""
        kind, *rest = message
        if kind == "open":
            self._stores = cast("Opener", rest[0]).open()
            return {part: _methods(getattr(self._stores, part)) for part in _PARTS}
        if kind == "close":
            if self._stores is not None:
                self._stores.close()
            self._stores = None
            return None
        if kind == "run":
            function, arguments = rest
            run = cast("Callable[..., object]", function)
            return run(self._stores, self._tell, *cast("tuple[object, ...]", arguments))
        part, method, arguments, options = rest
        store = getattr(self._stores, cast("str", part))
        call = getattr(store, cast("str", method))
        value: object = call(
            *cast("tuple[object, ...]", arguments), **cast("dict[str, object]", options)
        )
        return value

    def _tell(self, value: object) -> None:
        send(self._answers, ("told", value))


def main() -> None:
    """Serve until the other side goes away."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    sys.path[:] = cast("list[str]", receive(questions))
    server = _Server(answers)
    while True:
        try:
            message = cast("tuple[object, ...]", receive(questions))
        except EOFError:
            return
        try:
            answer = ("returned", server.perform(message))
        except Exception as error:  # noqa: BLE001 - the other side judges it
            answer = ("raised", _portable(error))
        try:
            send(answers, answer)
        except BrokenPipeError:
            os._exit(1)  # nobody is left to answer to: not even the pipe's own end is of use

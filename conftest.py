"""The tiers of the tests: the fast one starts no process.

`hatch run fast` leaves out what is marked ``slow`` or ``storm``. A test that starts a process and
has neither mark fails here, so that the fast tier stays what it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_STARTS = frozenset(
    ["os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"]
)
_started: list[str] | None = None


def _listen(event: str, args: tuple[object, ...]) -> None:
    # What the standard library asks the machine, once in a process, is no test's doing.
    if event in _STARTS and args[:1] != ("uname",) and _started is not None:
        _started.append(f"{event}{args[:2]!r}"[:200])


sys.addaudithook(_listen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test without a mark that has started a process."""
    global _started  # noqa: PLW0603 - an audit hook stays for ever: it needs a switch
    if item.get_closest_marker("slow") or item.get_closest_marker("storm"):
        return (yield)
    _started = []
    try:
        yield
        if _started:
            pytest.fail(
                f"it started a process ({_started[0]}): mark it with @pytest.mark.slow, "
                "or @pytest.mark.storm if it starts many"
            )
    finally:
        _started = None

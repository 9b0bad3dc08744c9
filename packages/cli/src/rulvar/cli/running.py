"""A command's event loop, and the end of the process when user code keeps running.

When a command's coroutine returns, its runs are detached and their leases released.
User code that is still running, in a task that catches its cancellation or in a thread of
`asyncio.to_thread`, cannot write any more, and does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rulvar.core.engine.code.afterlife import abandon
from rulvar.core.engine.segment.culprits import CANCELLED, STOPPED, blame
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

__all__ = ["end_now", "leave", "run_to_end"]

T = TypeVar("T")

_TASKS_SECONDS = 1.0
_THREADS_SECONDS = 0.2
_STOPPED = "Event loop stopped before Future completed."
"""What asyncio says of a loop that was stopped under it."""

_REMEDY = (
    "it may cancel only the tasks that it created, and must not stop the loop; the runs of "
    "this command are released and can be resumed"
)

_ran: list[bool] = []
"""Whether this process has run user code, which may have left threads behind."""


def run_to_end(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine as `asyncio.run` does, but do not wait for tasks that ignore cancellation.

    Raises what ``main`` raises, and `ConfigError` where user code has stopped the loop or
    cancelled the command's own task: that is a death of the run whose code it was, or of all
    that were executing.
    """
    _ran.append(True)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(threads)
        loop.set_task_factory(_make_main)
        try:
            return runner.run(main)
        except asyncio.CancelledError:
            message = f"workflow code cancelled the task of the command: {_REMEDY}"
            raise ConfigError(message) from None
        except RuntimeError as error:
            if not asyncio.all_tasks(loop) or error.args != (_STOPPED,):
                raise
            blame(loop, STOPPED)
            message = f"workflow code stopped the event loop of the command: {_REMEDY}"
            raise ConfigError(message) from None
        finally:
            loop.run_until_complete(_end_tasks())
            threads.shutdown(wait=False, cancel_futures=True)
            # The runner waits for the threads of the default one: of this there are none.
            loop.set_default_executor(ThreadPoolExecutor(1))


class _MainTask(asyncio.Task[T]):
    """The command's own task: nothing but user code cancels it while it has runs."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - the signature is asyncio's
        blame(self.get_loop(), CANCELLED)
        return super().cancel(msg)


def _make_main(
    loop: asyncio.AbstractEventLoop,
    main: Coroutine[Any, Any, T] | Generator[Any, None, T],
    **options: Any,  # noqa: ANN401 - whatever asyncio hands on
) -> asyncio.Task[T]:
    loop.set_task_factory(None)  # the first task is the main one
    return _MainTask(main, loop=loop, **options)


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=_TASKS_SECONDS)
    for task in left:
        abandon(task)


def leave(status: int) -> NoReturn:
    """End the process; at once where a thread of user code would keep it alive."""
    give_up_at = time.monotonic() + _THREADS_SECONDS
    for thread in _others() if _ran else ():
        thread.join(max(0.0, give_up_at - time.monotonic()))
    if not _ran or not _others():
        sys.exit(status)
    with suppress(Exception):
        # As an orderly end does, after it has waited for the threads.
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name for it
    end_now(status)


def end_now(status: int) -> NoReturn:
    """End the process at once, from any thread."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _others() -> list[threading.Thread]:
    here = threading.current_thread()
    return [each for each in threading.enumerate() if each is not here and not each.daemon]

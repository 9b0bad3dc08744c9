"""Awaiting on one event loop what belongs to another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["on_loop"]

T = TypeVar("T")


async def on_loop(loop: asyncio.AbstractEventLoop, call: Coroutine[object, object, T]) -> T:
    """Await ``call`` on ``loop``, from whatever loop asks; raises what it raises."""
    if loop is asyncio.get_running_loop():
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))

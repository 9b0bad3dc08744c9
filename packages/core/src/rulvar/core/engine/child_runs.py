"""How an engine begins the children of its segments, and cancels those that were given up."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine import control_calls
from rulvar.core.engine.boot import StartNew
from rulvar.core.engine.segment import CURRENT
from rulvar.core.errors import RulvarError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine.handle import RunHandle
    from rulvar.core.engine.registry import Registry
    from rulvar.core.engine.workflow import Workflow

__all__ = ["ChildRuns"]

_log = logging.getLogger("rulvar.engine")


class ChildRuns:
    """The children of one engine's runs.

    ``launch`` begins a segment under a lease of its own; ``briefly`` acts on a run under a
    brief lease.
    """

    def __init__(
        self,
        registry: Registry,
        launch: Callable[[str, StartNew], RunHandle],
        briefly: Callable[[str, Callable[..., None]], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._launch = launch
        self._briefly = briefly

    def launch(
        self,
        run_id: str,
        workflow: Workflow,
        args: object,
        /,
        *,
        args_provided: bool,
        parent: tuple[str, str],
        retried_by: int | None = None,
    ) -> RunHandle:
        """Begin or resume a child; see `Launch`."""
        wish = StartNew(
            workflow=self._registry.add(workflow),
            args_provided=args_provided,
            args=args,
            parent=parent,
            retried_by=retried_by,
        )
        return self._launch(run_id, wish)

    async def cancel(self, child_id: str, parent_id: str, genesis: str) -> None:
        """Cancel a child whose call was given up, if it is that one; what hinders it is logged."""
        CURRENT.set(None)  # asked by a segment that may have ended: its journal says so already
        act = partial(control_calls.cancel_child, parent=(parent_id, genesis))
        try:
            await self._briefly(child_id, act)
        except RulvarError as error:
            _log.warning("run %r was given up by its parent and lives on: %s", child_id, error)

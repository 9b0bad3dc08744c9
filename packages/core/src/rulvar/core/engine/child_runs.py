"""How an engine begins the children of its segments, and cancels those that were given up."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine.admin import run_admin
from rulvar.core.engine.segment.begin import StartNew
from rulvar.core.engine.segment.lifecycle import CURRENT
from rulvar.core.errors import RulvarError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine.code.registry import Registry
    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.handle import RunHandle

__all__ = ["ChildRuns"]

_log = logging.getLogger("rulvar.engine")


class ChildRuns:
    """The children of one engine's runs.

    ``launch`` begins a segment under a separate lease; ``briefly`` acts on a run under a
    brief lease.
    """

    def __init__(
        self,
        registry: Registry,
        launch: Callable[[str, StartNew], RunHandle],
        with_short_lease: Callable[[str, Callable[..., None]], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._launch = launch
        self._with_short_lease = with_short_lease

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
        request = StartNew(
            workflow=self._registry.add(workflow),
            args_provided=args_provided,
            args=args,
            parent=parent,
            retried_by=retried_by,
        )
        return self._launch(run_id, request)

    async def cancel(self, child_id: str, parent_id: str, genesis: str) -> None:
        """Cancel a child whose call was given up, if it is that one; what hinders it is logged."""
        CURRENT.set(None)  # asked by a segment that may have ended: its journal says so already
        act = partial(run_admin.cancel_child, parent=(parent_id, genesis))
        try:
            await self._with_short_lease(child_id, act)
        except RulvarError as error:
            _log.warning(
                "run %r was given up by its parent and could not be cancelled: %s", child_id, error
            )

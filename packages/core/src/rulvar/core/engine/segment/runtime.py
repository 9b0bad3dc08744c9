"""What one engine shares between its segments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from rulvar.core.engine.code.workflow import code_of
from rulvar.core.engine.lease.ownership import NoLease, OwnedLease, Predecessor
from rulvar.core.engine.lease.writer import RunWriter
from rulvar.core.process_identity import is_provably_gone, own_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from rulvar.core.clock import Clock
    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.io.bridge import Bridge
    from rulvar.core.engine.io.event_bus import EventBus
    from rulvar.core.engine.io.mutations import FencedCalls, LeaseApi
    from rulvar.core.engine.io.reads import Reads
    from rulvar.core.engine.kernel.outcome import RunOutcome
    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.lease.renewer import LeaseRenewer
    from rulvar.core.ids import IdSource
    from rulvar.core.records import LeaseInfo

__all__ = ["ChildHandle", "Launch", "OnSourceChange", "Runtime"]

OnSourceChange: TypeAlias = Literal["warn", "refuse"]
"""What to do with a run that a different version of its workflow's source started."""


class ChildHandle(Protocol):
    """What a segment needs of a child that lives beside it."""

    @property
    def done(self) -> bool:
        """Whether its segment is over and its lease given back."""
        ...

    async def result(self) -> RunOutcome:
        """Wait for the child's segment to end."""
        ...

    async def wait(self) -> None:
        """Wait until it is over, however it ended."""
        ...

    def detach(self) -> None:
        """End it without an outcome."""
        ...

    def drain(self) -> None:
        """Let the calls under way end, then let it go."""
        ...


class Launch(Protocol):
    """How a segment begins a child."""

    def __call__(
        self,
        run_id: str,
        workflow: Workflow,
        args: object,
        /,
        *,
        args_provided: bool,
        parent: tuple[str, str],
        retried_by: int | None = None,
    ) -> ChildHandle:
        """Begin or resume the child of ``parent``, a run id and that run's genesis.

        ``retried_by`` is the seq of the parent's retry that makes a failed child go on.

        Raises `LeaseHeldError` when it lives here already.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The machinery of one engine.

    ``suspend_after_ms`` is how near a deadline must be for a parked segment to wait for it instead
    of suspending; ``lease_ttl_ms`` is None where the store grants no leases.
    """

    mutations: FencedCalls
    reads: Reads
    leases: LeaseApi
    bridge: Bridge
    step_threads: Bridge
    git_threads: Bridge
    renewer: LeaseRenewer
    clock: Clock
    ids: IdSource
    owner: str
    owns: bool
    lease_ttl_ms: int | None
    suspend_after_ms: int
    workflows: Mapping[str, Workflow]
    bus: EventBus
    launch: Launch
    on_source_change: OnSourceChange
    on_changed_args: Literal["warn", "refuse"]
    cancel_child: Callable[[str, str, str], Coroutine[object, object, None]]
    """Cancels a child by its id, given its parent's id and genesis; what hinders it is logged."""
    build: str | None = None
    perform: bool = True
    """False in a trial: the segment stops where anything would be performed anew."""

    def code(self, workflow: Workflow) -> str:
        """Return what tells this code of a workflow from another one of the same identity."""
        return code_of(workflow, self.build)

    def writer(self, run_id: str, ownership: Ownership) -> RunWriter:
        """Make the writer of one segment."""
        emit = partial(self.bus.emit, run_id, 0)
        return RunWriter(self.mutations, self.reads, run_id, ownership, emit=emit)

    def fresh_owner(self) -> str:
        """Return an owner string for one grant: whose it is, which process, and a token."""
        identity = own_identity()
        told = "" if identity is None else f"{identity}:"
        return f"{self.owner}:{told}{self.ids.token()[:16]}"

    def take(self, run_id: str) -> OwnedLease:
        """Acquire a run under a fresh owner string and keep it renewed.

        One whose holder's process is provably gone is taken from it. Raises
        `LeaseHeldError` (``held``) while it is held.
        """
        if self.lease_ttl_ms is None:
            message = "the engine owns nothing over this store"
            raise AssertionError(message)
        owned = OwnedLease.take(
            self.leases,
            run_id,
            self.fresh_owner(),
            lease_ttl_ms=self.lease_ttl_ms,
            clock=self.clock,
            fresh_owner=self.fresh_owner,
        )
        owned.emit = partial(self.bus.emit, run_id, 0)
        self.renewer.keep(owned)
        return owned

    def take_up(self, run_id: str, before: LeaseInfo | None = None) -> Ownership:
        """Take a run for a segment; note whose the lease ``before`` was, if it was the last.

        Read before the acquire, that decides nothing: it is told if the run has died under it.
        Raises as `take` does.
        """
        ownership = self.own(run_id)
        if isinstance(ownership, OwnedLease) and before and before.epoch + 1 == ownership.epoch:
            gone = is_provably_gone(before.owner)
            ended: Literal["process-gone", "lease-expired"] = (
                "process-gone" if gone else "lease-expired"
            )
            ownership.predecessor = Predecessor(owner=before.owner, ended=ended)
        return ownership

    def own(self, run_id: str) -> Ownership:
        """Take a run as this engine does: under a lease, or without by its host's decision.

        Raises as `take` does.
        """
        return self.take(run_id) if self.owns else NoLease(run_id)

    def give_back(self, ownership: Ownership) -> None:
        """Stop renewing, and release."""
        if isinstance(ownership, OwnedLease):
            self.renewer.detach(ownership)
        ownership.release()

"""The quickstart's workers, each a process of its own that reports in JSON lines.

``own`` starts the run, and stops in the middle of a step until it is told to go on. When its
segment has ended, it tries every write there is with the lease that it had: it plays a worker
that does not know, or does not care, that it was superseded.

``follow`` is an ordinary worker: it takes what nobody holds and goes on with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, cast

import workflow
from rulvar.core import (
    Engine,
    Event,
    Lease,
    LeaseHeldError,
    RulvarError,
    SupersededError,
    Worker,
    WorkerResult,
    assert_fenced_writes,
    open_stores,
)
from rulvar.core.spi import (
    JournalRecord,
    RunMeta,
    has_lease_admin,
    has_lease_revival,
    has_whole_run_delete,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core import FencedStores

__all__: list[str] = []


def report(kind: str, **facts: object) -> None:
    """Tell the quickstart, at once."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def observe(event: Event) -> None:
    """Pass on what the engine tells, all but the single steps."""
    if not event.kind.startswith("step."):
        report(event.kind, run_id=event.run_id, epoch=event.epoch, status=event.name)


async def own(stores: FencedStores, options: argparse.Namespace) -> None:
    """Start the run, lose it in the middle of a step, and try to write all the same."""
    mine: list[Lease] = []

    def half_read(name: str) -> None:
        if name != options.pause_in:
            return
        if not has_lease_admin(stores.journal):
            message = "the store does not show its leases"
            raise TypeError(message)
        held = stores.journal.get_lease(options.run)
        if held is None:
            message = f"nobody holds {options.run!r}, though its step runs here"
            raise RuntimeError(message)
        mine.append(Lease(run_id=held.run_id, owner=held.owner, epoch=held.epoch))
        report("half-read", file=name, owner=held.owner, epoch=held.epoch)
        os.read(sys.stdin.fileno(), 1)

    workflow.half_read = half_read
    wanted = cast("workflow.Wanted", json.loads(options.args))
    async with Engine(stores, owner=options.owner, observer=observe) as engine:
        try:
            outcome = await engine.run(workflow.count_files, wanted, run_id=options.run)
        except SupersededError as error:
            report(
                "ended",
                error=type(error).__name__,
                message=str(error),
                reason=error.reason,
                epoch=error.epoch,
            )
        except RulvarError as error:
            report("ended", error=type(error).__name__, message=str(error))
        else:
            report("ended", error=None, message=f"an outcome: {outcome.status}")
    for lease in mine:
        for mutation, write in writes(stores, lease):
            attempt(mutation, write)
    report("tried")


def writes(stores: FencedStores, lease: Lease) -> list[tuple[str, Callable[[], object]]]:
    """Return every way to change the run's state, each under the same lease."""
    journal, transcripts = stores.journal, stores.transcripts
    run_id = lease.run_id
    # Above the tail, so that nothing but the fence can refuse it.
    seq = journal.load(run_id)[-1].seq + 1_000
    payload = json.dumps({"seq": seq, "kind": "zombie", "status": "ok"}).encode("utf-8")
    record = JournalRecord(seq=seq, payload=payload)
    failed = RunMeta(run_id=run_id, status="error", updated_at="2000-01-01T00:00:00.000Z")
    source = f"{run_id}/source"
    found: list[tuple[str, Callable[[], object]]] = [
        ("append", lambda: journal.append(run_id, record, lease=lease)),
        ("put_meta", lambda: journal.put_meta(failed, lease=lease)),
        ("put_blob", lambda: transcripts.put(source, b"stale", lease=lease)),
        ("delete_blob", lambda: transcripts.delete(source, lease=lease)),
        ("renew", lambda: journal.renew(lease)),
    ]
    if has_lease_revival(journal):
        found.append(("revive", lambda: journal.revive(lease)))
    found.append(("release", lambda: journal.release(lease)))
    found.append(("delete", lambda: journal.delete(run_id, lease=lease)))
    if has_whole_run_delete(journal):
        delete_whole_run = journal.delete_whole_run
        found.append(("delete_whole_run", lambda: delete_whole_run(run_id, lease=lease)))
    return found


def attempt(mutation: str, write: Callable[[], object]) -> None:
    """Try one write and report what the store answered."""
    try:
        write()
    except LeaseHeldError as error:
        report(
            "attempt",
            mutation=mutation,
            refused=True,
            reason=error.reason,
            holder=error.holder,
            epoch=error.epoch,
        )
    except RulvarError as error:
        report("attempt", mutation=mutation, refused=False, answer=type(error).__name__)
    else:
        report("attempt", mutation=mutation, refused=False, answer="it landed")


async def follow(stores: FencedStores, options: argparse.Namespace) -> None:
    """Sweep until the run has an outcome."""

    def done(result: WorkerResult) -> None:
        if result.run_id != options.run:
            return
        outcome = result.outcome
        if outcome is None:
            report(
                "held" if isinstance(result.error, LeaseHeldError) else "failed",
                message=str(result.error),
            )
            return
        report(
            "outcome",
            status=outcome.status,
            value=outcome.value,
            epoch=outcome.epoch,
            executed=outcome.executed,
            replayed=outcome.replayed,
        )
        worker.stop()

    async with Engine(
        stores, [workflow.count_files], owner=options.owner, observer=observe
    ) as engine:
        worker = Worker(engine, concurrency=1, poll_interval=0.05, on_result=done)

        def orphaned() -> None:
            loop.remove_reader(sys.stdin.fileno())
            alone.set()
            worker.stop(grace=0)

        # The quickstart never writes here: that it reads as something means that it is gone.
        alone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), orphaned)
        report("sweeping")
        counts = await worker.run()
        if not alone.is_set():
            report("stopped", sweeps=counts.sweeps)


def main() -> None:
    """Do one role."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["own", "follow"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--args", default="{}")
    parser.add_argument("--pause-in", default=None)
    options = parser.parse_args()
    with open_stores(options.store) as opened:
        stores = assert_fenced_writes(opened)  # a worker without the full fence never starts
        asyncio.run((own if options.role == "own" else follow)(stores, options))


if __name__ == "__main__":
    main()

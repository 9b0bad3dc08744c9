"""The state machine: several owners, a few runs, a clock, and every operation of the SPI.

Hypothesis explores a machine of many rules by switching rules off, and by varying histories
that it has made: it finds what is rare, and may pass by what two operations in a row would
show. A machine of one rule gives it nothing to switch off, so half of the histories are walks
in which every operation is as likely as any other. Both shrink to a short script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.model.compare import Both, Pair
from rulvar.core.capabilities import has_meta_lookup
from rulvar.core.records import RUN_STATUSES, Lease, RunFilter, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.model.compare import Side
    from rulvar.core.stores import Stores

__all__ = ["run_model"]

_RUNS = ("a", "a2")
_OWNERS = ("ann", "bob")
_TAGS = ((), ("x",), ("x", "y"))
_runs = st.sampled_from(_RUNS)
_owners = st.sampled_from(_OWNERS)
_handles = st.integers(0, 1)
_choices = st.integers(0, 5)


class _Machine(RuleBasedStateMachine):
    """Every operation as a rule; `check` and `other` are set by `run_model`."""

    check: ClassVar[CheckContext]
    number: ClassVar[int] = 0
    before: ClassVar[tuple[str, ...]] = ()
    both: Both

    @initialize()
    def begin(self) -> None:
        kind = type(self)
        kind.number += 1
        check = self.check
        # Without get_meta a row is looked for in the whole listing: keep it short.
        if not has_meta_lookup(check.stores.journal):
            for run in kind.before:
                check.stores.journal.delete(run)
        more = [self.other] if self.other is not None else []
        runs = kind.before = tuple(check.run_id(f"{kind.number}-{run}") for run in _RUNS)
        self.both = Both.begin(check, runs, more)
        self.leases: list[Pair] = []
        self.writes = 0

    other: ClassVar[Stores | None] = None

    # --- what is chosen -----------------------------------------------------------------------

    def run_of(self, letter: str) -> str:
        return self.both.runs[_RUNS.index(letter)]

    def lease_of(self, run: str, choice: int) -> Pair | None:
        """Choose a lease: none, the run's latest, any, or a forged one."""
        mark = self.both.marks.get(run)
        if choice == 0 or not self.leases:
            return None
        if choice in {1, 2} and mark is not None:
            return mark
        if choice == 3 and mark is not None:  # noqa: PLR2004
            return _forged(mark, owner="forger", step=0)
        if choice == 4 and mark is not None:  # noqa: PLR2004
            return _forged(mark, owner=mark.right.owner, step=1)
        return self.leases[self.writes % len(self.leases)]

    def mark(self) -> str:
        self.writes += 1
        return f"w{self.writes}"

    def claims(self, level: Level) -> bool:
        return self.check.claims(level)

    def offers(self, method: str) -> bool:
        return callable(getattr(self.check.stores.journal, method, None))

    def grant(self, text: str, call: Callable[[Side], object], handle: int) -> None:
        found = self.both.do(text, call, handle=handle)
        if isinstance(found, Pair):
            self.leases.append(found)

    # --- the operations -----------------------------------------------------------------------

    @rule(letter=_runs, choice=_choices, step=st.integers(-1, 3), handle=_handles)
    def append(self, letter: str, choice: int, step: int, handle: int) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice)
        found = self.both.right.journal.load(run)
        seq = max(0, (found[-1].seq if found else 0) + step)
        written = record(seq, self.mark())
        self.both.do(
            f"append({run!r}, seq={seq}{_under(pair)})",
            lambda side: side.journal.append(run, written, **side.under(pair)),
            handle=handle,
        )

    @rule(
        letter=_runs,
        choice=_choices,
        status=st.sampled_from(RUN_STATUSES),
        tags=st.sampled_from(_TAGS),
        handle=_handles,
    )
    def put_meta(
        self, letter: str, choice: int, status: str, tags: tuple[str, ...], handle: int
    ) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice) if self.claims(Level.FENCED) else None
        meta = RunMeta(
            run_id=run,
            status=status,
            updated_at="2026-01-01T00:00:00.000Z",
            tags=tags,
            genesis=self.mark(),
            name=status if tags else None,
        )
        self.both.do(
            f"put_meta({run!r}, {status!r}, tags={tags}{_under(pair)})",
            lambda side: side.journal.put_meta(meta, **side.under(pair)),
            handle=handle,
        )

    @rule(letter=_runs, choice=_choices, handle=_handles)
    def delete(self, letter: str, choice: int, handle: int) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice) if self.claims(Level.FENCED) else None
        self.both.do(
            f"delete({run!r}{_under(pair)})",
            lambda side: side.journal.delete(run, **side.under(pair)),
            handle=handle,
        )

    @precondition(lambda self: self.offers("delete_whole_run") and self.claims(Level.FENCED_PAIR))
    @rule(letter=_runs, choice=_choices)
    def delete_whole_run(self, letter: str, choice: int) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice)
        self.both.do(
            f"delete_whole_run({run!r}{_under(pair)})",
            lambda side: side.journal.delete_whole_run(run, **side.under(pair)),
        )

    @precondition(lambda self: self.check.has_blobs)
    @rule(letter=_runs, choice=_choices, name=st.sampled_from(("t", "t/u")), handle=_handles)
    def put(self, letter: str, choice: int, name: str, handle: int) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice) if self.claims(Level.FENCED_PAIR) else None
        blob = self.mark().encode()
        self.both.do(
            f"put('{run}/{name}', {blob!r}{_under(pair)})",
            lambda side: side.transcripts.put(f"{run}/{name}", blob, **side.under(pair)),
            handle=handle,
        )

    @precondition(lambda self: self.check.has_blobs)
    @rule(letter=_runs, choice=_choices, name=st.sampled_from(("t", "t/u")))
    def delete_blob(self, letter: str, choice: int, name: str) -> None:
        run = self.run_of(letter)
        pair = self.lease_of(run, choice) if self.claims(Level.FENCED_PAIR) else None
        self.both.do(
            f"transcripts.delete('{run}/{name}'{_under(pair)})",
            lambda side: side.transcripts.delete(f"{run}/{name}", **side.under(pair)),
        )

    @precondition(lambda self: self.claims(Level.LEASABLE))
    @rule(letter=_runs, owner=_owners, handle=_handles)
    def acquire(self, letter: str, owner: str, handle: int) -> None:
        self.take(letter, owner, handle)

    def take(self, letter: str, owner: str, handle: int) -> None:
        run = self.run_of(letter)
        self.grant(
            f"acquire({run!r}, {owner!r})", lambda side: side.journal.acquire(run, owner), handle
        )

    @precondition(lambda self: self.claims(Level.LEASABLE) and self.both.marks != {})
    @rule(letter=_runs, owner=_owners, handle=_handles)
    def take_over(self, letter: str, owner: str, handle: int) -> None:
        run = self.run_of(letter)
        mark = self.both.marks.get(run)
        if mark is None:
            return
        self.both.do(
            f"release({_named(mark)})", lambda side: side.journal.release(side.lease(mark))
        )
        self.take(letter, owner, handle)

    @precondition(lambda self: self.offers("seize"))
    @rule(letter=_runs, owner=_owners, choice=st.integers(0, 5))
    def seize(self, letter: str, owner: str, choice: int) -> None:
        run = self.run_of(letter)
        over = self.lease_of(run, choice)
        if over is None:
            self.grant(f"seize({run!r}, {owner!r})", lambda side: side.journal.seize(run, owner), 0)
            return
        self.grant(
            f"seize({run!r}, {owner!r}, over={_named(over)})",
            lambda side: side.journal.seize(run, owner, over=side.lease(over)),
            0,
        )

    @precondition(lambda self: self.offers("renew_all") and bool(self.leases))
    @rule(letter=_runs, choice=st.integers(1, 5), also=st.integers(1, 5), handle=_handles)
    def renew_all(self, letter: str, choice: int, also: int, handle: int) -> None:
        run = self.run_of(letter)
        pairs = [pair for n in (choice, also) if (pair := self.lease_of(run, n)) is not None]
        self.both.do(
            f"renew_all({', '.join(map(_named, pairs))})",
            lambda side: [
                refusal.reason
                for refusal in side.journal.renew_all([side.lease(pair) for pair in pairs])
            ],
            handle=handle,
        )

    @precondition(lambda self: bool(self.leases))
    @rule(
        letter=_runs,
        choice=st.integers(1, 5),
        handle=_handles,
        what=st.sampled_from(("renew", "release", "revive")),
    )
    def about_a_lease(self, letter: str, choice: int, handle: int, what: str) -> None:
        pair = self.lease_of(self.run_of(letter), choice)
        if pair is None or (what == "revive" and not self.offers("revive")):
            return
        self.grant(
            f"{what}({_named(pair)})",
            lambda side: getattr(side.journal, what)(side.lease(pair)),
            handle,
        )

    @precondition(lambda self: self.offers("raise_epoch"))
    @rule(letter=_runs, step=st.integers(0, 3))
    def raise_epoch(self, letter: str, step: int) -> None:
        run = self.run_of(letter)
        mark = self.both.marks.get(run)
        right = (mark.right.epoch if mark else 0) + step
        tried = (mark.tried.epoch if mark else 0) + step
        self.both.raised(run, right, tried)
        self.both.do(
            f"raise_epoch({run!r}, {tried})",
            lambda side: side.journal.raise_epoch(run, right if side.is_right else tried),
        )

    @precondition(lambda self: self.check.place.clock is not None)
    @rule(part=st.sampled_from((1, 2, 3, 4)))
    def time_passes(self, part: int) -> None:
        ttl = self.check.lease_ttl_ms
        ms = {1: 1, 2: ttl - 1, 3: ttl, 4: ttl // 2}[part]
        self.both.script.append(f"clock.advance({ms})")
        clock = self.check.place.clock
        if clock is not None:
            clock.advance(ms)
        self.both.compare_states()

    @rule(
        statuses=st.none() | st.lists(st.sampled_from(RUN_STATUSES), max_size=2),
        tags=st.sampled_from(_TAGS),
        limit=st.none() | st.integers(1, 2),
        handle=_handles,
    )
    def list_runs(
        self, statuses: list[str] | None, tags: tuple[str, ...], limit: int | None, handle: int
    ) -> None:
        wanted = RunFilter(
            statuses=None if statuses is None else tuple(statuses),
            tags=tags,
            limit=limit,
            # The trial's store may hold other runs before these, and after.
            after_run_id=self.both.runs[0][:-1],
        )
        ours = set(self.both.runs)
        self.both.do(
            f"list_runs({wanted})",
            lambda side: [row for row in side.journal.list_runs(wanted) if row.run_id in ours],
            handle=handle,
        )

    @precondition(lambda self: self.offers("load_after"))
    @rule(letter=_runs, after=st.integers(-1, 6), limit=st.integers(1, 3))
    def load_after(self, letter: str, after: int, limit: int) -> None:
        run = self.run_of(letter)
        self.both.do(
            f"load_after({run!r}, {after}, {limit})",
            lambda side: side.journal.load_after(run, after, limit),
        )


def _forged(pair: Pair, *, owner: str, step: int) -> Pair:
    def forge(lease: Lease) -> Lease:
        return Lease(run_id=lease.run_id, owner=owner, epoch=lease.epoch + step)

    return Pair(
        f"Lease({pair.right.run_id!r}, {owner!r}, {pair.name}.epoch + {step})",
        forge(pair.right),
        forge(pair.tried),
    )


def _named(pair: Pair) -> str:
    return pair.name


def _under(pair: Pair | None) -> str:
    return "" if pair is None else f", lease={pair.name}"


# --- walks ------------------------------------------------------------------------------------

_NAMES = (
    "pause",
    "append",
    "put_meta",
    "delete",
    "put",
    "append",
    "delete_blob",
    "acquire",
    "take_over",
    "append",
    "about_a_lease",
    "seize",
    "renew_all",
    "delete_whole_run",
    "raise_epoch",
    "time_passes",
    "list_runs",
    "load_after",
)
"""The operations; the first does nothing, so that a step can shrink away."""


def _walk_over(kind: type[_Machine]) -> type[RuleBasedStateMachine]:
    """Return the machine whose one rule makes any of the machine."""

    class Walk(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.machine = kind()
            self.machine.begin()

        @rule(
            name=st.sampled_from(_NAMES),
            letter=st.sampled_from("aab"),
            choice=st.integers(0, 5),
            number=st.integers(0, 3),
            of=st.integers(0, 5),
            handle=st.integers(0, 1),
        )
        def step(
            self, *, name: str, letter: str, choice: int, number: int, of: int, handle: int
        ) -> None:
            if name != "pause" and _offers(self.machine, name):
                run = "a" if letter == "a" else "a2"
                arguments = _arguments(run, choice, number, of, handle)[name]
                getattr(self.machine, name)(**arguments)

    return Walk


def _offers(machine: _Machine, name: str) -> bool:
    conditions: dict[str, Callable[[], bool]] = {
        "put": lambda: machine.check.has_blobs,
        "delete_blob": lambda: machine.check.has_blobs,
        "acquire": lambda: machine.claims(Level.LEASABLE),
        "take_over": lambda: machine.claims(Level.LEASABLE),
        "about_a_lease": lambda: bool(machine.leases),
        "seize": lambda: machine.offers("seize"),
        "renew_all": lambda: machine.offers("renew_all") and bool(machine.leases),
        "raise_epoch": lambda: machine.offers("raise_epoch"),
        "load_after": lambda: machine.offers("load_after"),
        "time_passes": lambda: machine.check.place.clock is not None,
        "delete_whole_run": lambda: (
            machine.offers("delete_whole_run") and machine.claims(Level.FENCED_PAIR)
        ),
    }
    return conditions.get(name, lambda: True)()


def _arguments(run: str, choice: int, number: int, of: int, handle: int) -> dict[str, Any]:
    """Return the arguments of each operation, from a few numbers."""
    owner, tags = ("ann", "bob")[of % 2], ((), ("x",), ("x", "y"))[of % 3]
    name, status = ("t", "t/u")[of % 2], RUN_STATUSES[of]
    under = {"letter": run, "choice": choice}
    here = {"handle": handle}
    return {
        "append": under | here | {"step": max(number, 0 if of else -1)},
        "put_meta": under | here | {"status": status, "tags": tags},
        "delete": under | here,
        "put": under | here | {"name": name},
        "delete_blob": under | {"name": name},
        "acquire": {"letter": run, "owner": owner} | here,
        "take_over": {"letter": run, "owner": owner} | here,
        "about_a_lease": {
            "letter": run,
            "choice": max(1, choice),
            "what": ("renew", "release", "revive")[of % 3],
        }
        | here,
        "seize": {"letter": run, "owner": owner, "choice": choice if number else 0},
        "renew_all": {"letter": run, "choice": max(1, choice), "also": 1 + of % 5} | here,
        "delete_whole_run": under,
        "raise_epoch": {"letter": run, "step": number},
        "time_passes": {"part": number + 1},
        "list_runs": {
            "statuses": [None, [], [status], [status, "ok"]][number],
            "tags": tags,
            "limit": (None, 1, 2)[of % 3],
        }
        | here,
        "load_after": {"letter": run, "after": of, "limit": number + 1},
    }


def run_model(check: CheckContext, *, chance: int, examples: int, steps: int) -> None:
    """Run the machine over the trial's store. Raises `CheckFailure` with the shortest script."""
    other = None if check.place.sharing is Sharing.OBJECT else check.reopen()

    class Machine(_Machine):
        pass

    Machine.check = check
    Machine.other = other
    _run(_walk_over(Machine), chance, -(-examples // 2), steps)
    _run(Machine, chance, -(-examples // 2), steps)
    check.count("random histories", Machine.number)


def _run(kind: type[RuleBasedStateMachine], chance: int, examples: int, steps: int) -> None:
    seed(chance)(kind)
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            verbosity=Verbosity.quiet,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )

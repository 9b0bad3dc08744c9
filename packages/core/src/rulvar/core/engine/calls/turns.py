"""A checkpointed loop: the state is saved after each turn; a crash resumes from the last one.

The loop is one call of the body. Its opening entry's seq names everything that it keeps::

    <run>/ckpt/<seq>             the checkpoint, overwritten at every turn's end
    <run>/summary/<seq>/<turn>   what ``compact`` made of a long state, once per turn

A checkpoint says which run (genesis) and which dispatch (seq) it belongs to, how many turns
it stands for, and the state that the next turn begins with; a summary also says of which
state it was made. The hash of all that ends the blob. A blob that cannot be decoded, whose
bytes are not the ones that were kept, that belongs elsewhere or whose counters cannot be is
refused whole, and the attempt starts over: half a checkpoint is none. Everything is written
through the writer, under the lease: a superseded segment's checkpoint is refused, and that
ends its loop (finding F2).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from rulvar.core.engine.calls.steps import call, user_code
from rulvar.core.engine.code.raised import caught
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.segment.scope import unwrap
from rulvar.core.errors import ConfigError
from rulvar.core.values import normalize
from rulvar.core.wire import json_text, parse_time, parse_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.code.raised import Caught
    from rulvar.core.engine.segment.scope import Scope
    from rulvar.core.journal import JournalEntry

__all__ = ["Compaction", "Continue", "Done", "Turns", "TurnsEnd", "turns"]

_log = logging.getLogger("rulvar.engine")

T = TypeVar("T")

TurnsEnd = Literal["done", "max_turns", "deadline"]
_FORMAT = 1
_SEAL = b',"hash":"sha256:'


@dataclass(frozen=True, slots=True)
class Continue(Generic[T]):
    """A turn's answer: continue this state, one I-JSON value."""

    state: T


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A turn's answer: the loop is done with this result, one I-JSON value."""

    result: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When a state has grown too long, and what to make of it.

    After a turn that goes on, ``when(state, turns)`` decides; ``make(state, turns)``, plain
    or async, returns the shorter state. It is kept as a blob of its own before the
    checkpoint names it, so that one that was made is never made again. The turn is kept
    before: a crash over its summary does not run it again.
    """

    when: Callable[[Any, int], bool]
    make: Callable[[Any, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What a turn loop came to: its result, or the partial outcome that a limit left.

    ``ended`` says which; ``result`` is there when it is ``done``, ``state`` is the last one
    that a turn continued, ``count`` how many turns the loop took in all its segments,
    and ``summaries`` the refs of the summaries that were made.
    """

    ended: TurnsEnd
    result: object
    state: object
    count: int
    summaries: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the form that crosses the journal."""
        return {
            "ended": self.ended,
            "result": self.result,
            "state": self.state,
            "turns": self.count,
            "summaries": list(self.summaries),
        }

    @classmethod
    def from_json(cls, value: object) -> Turns:
        """Read what `to_json` wrote."""
        facts = cast("dict[str, object]", value)
        return cls(
            ended=cast("TurnsEnd", facts["ended"]),
            result=facts["result"],
            state=facts["state"],
            count=cast("int", facts["turns"]),
            summaries=tuple(cast("list[str]", facts["summaries"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a loop stands between two turns; ``limit`` is the most turns that it might take.

    A summary is one too: ``made_of`` is the hash of the state that it stands for.
    """

    genesis: str
    dispatch: int
    turns: int
    limit: int
    state: object
    summaries: tuple[str, ...]
    made_of: str | None = None

    def encode(self) -> bytes:
        """Return the blob."""
        facts = {
            "format": _FORMAT,
            "genesis": self.genesis,
            "dispatch": self.dispatch,
            "turns": self.turns,
            "limit": self.limit,
            "state": self.state,
            "summaries": list(self.summaries),
            "madeOf": self.made_of,
        }
        body = json_text(facts).encode("utf-8").removesuffix(b"}")
        return body + _seal_of(body)

    @classmethod
    def decode(cls, blob: bytes, *, genesis: str, dispatch: int) -> Checkpoint:
        """Read a blob whole, or refuse it whole with ``ValueError`` saying why."""
        body, mark, rest = blob.rpartition(_SEAL)
        if mark + rest != _seal_of(body):
            message = "not the bytes that were kept"
            raise ValueError(message)
        facts = parse_value(blob)  # an InvalidJSONError is a ValueError
        if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
            message = "not a checkpoint of this format"
            raise ValueError(message)
        if facts.get("genesis") != genesis or facts.get("dispatch") != dispatch:
            message = "a checkpoint of another run or dispatch"
            raise ValueError(message)
        count, limit, summaries = facts.get("turns"), facts.get("limit"), facts.get("summaries")
        if type(count) is not int or type(limit) is not int or not 1 <= count <= limit:
            message = f"impossible count of turns: {count!r} of {limit!r}"
            raise ValueError(message)
        if not isinstance(summaries, list) or not all(isinstance(s, str) for s in summaries):
            message = "impossible summaries"
            raise ValueError(message)
        if "state" not in facts or len(summaries) > count:
            message = "no state, or more summaries than turns"
            raise ValueError(message)
        return cls(
            genesis=genesis,
            dispatch=dispatch,
            turns=count,
            limit=limit,
            state=facts["state"],
            summaries=tuple(cast("list[str]", summaries)),
            made_of=cast("str | None", facts.get("madeOf")),
        )


def _seal_of(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii") + b'"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one call of `Context.turns` asked for."""

    turn: Callable[..., object]
    initial: object
    max_turns: int
    compact: Compaction | None


async def turns(scope: Scope, name: str, plan: Plan, deadline_at: str | None) -> Turns:
    """Return what the journal has, or run the loop; see `Context.turns`."""
    segment = scope.segment
    opened = await scope.open("turns", name, deadline_at=deadline_at, args=plan.initial)
    if isinstance(opened, Answered):
        return Turns.from_json(unwrap(opened.answer, segment.run_id))
    loop = _Loop(scope, opened.entry, plan)
    failed: Caught | None = None
    try:
        with user_code(segment):  # also when to compact, and states of odd classes
            outcome = await loop.run(opened.before)
    except Exception as error:  # noqa: BLE001 - journalled, then raised
        failed = caught(name, error)
    if failed is not None:
        raise await scope.failed(opened.entry, failed)
    await scope.answer(opened.entry, outcome.to_json())
    return Turns.from_json(parse_value(json_text(outcome.to_json())))


class _Loop:
    """One execution of a turn loop."""

    def __init__(self, scope: Scope, opening: JournalEntry, plan: Plan) -> None:
        self._scope = scope
        self._segment = scope.segment
        self._opening = opening
        self._plan = plan
        self._at = Checkpoint(
            genesis=scope.segment.genesis,
            dispatch=opening.seq,
            turns=0,
            limit=plan.max_turns,
            state=normalize(plan.initial, path="$.initial"),
            summaries=(),
        )

    @property
    def _checkpoint_ref(self) -> str:
        return f"{self._segment.run_id}/ckpt/{self._opening.seq}"

    async def run(self, before: JournalEntry | None) -> Turns:
        if before is not None:
            await self._begin_loop()
        while True:
            limit = self._limit()
            if limit is not None:
                return self._end(limit, None)
            await self._scope.wait_if_draining()
            number = self._at.turns
            self._emit("turn.started", number)
            try:
                result = await self._turn()
            except Exception:
                self._emit("turn.finished", number, "error")
                raise
            self._emit("turn.finished", number, "continue" if result is None else "done")
            if result is not None:
                return self._end("done", result.result)

    def _emit(self, kind: str, number: int, detail: str = "") -> None:
        opening = self._opening
        self._segment.emit(kind, name=opening.key, seq=opening.seq, count=number, detail=detail)

    def _limit(self) -> TurnsEnd | None:
        if self._at.turns >= self._plan.max_turns:
            return "max_turns"
        deadline = self._opening.deadline_at
        if deadline is not None and parse_time(deadline) <= self._segment.runtime.clock.now_ms():
            return "deadline"
        return None

    def _end(self, ended: TurnsEnd, result: object) -> Turns:
        return Turns(
            ended=ended,
            result=result,
            state=self._at.state,
            count=self._at.turns,
            summaries=self._at.summaries,
        )

    def _moved(self, state: object, count: int, *summaries: str) -> Checkpoint:
        return replace(
            self._at, turns=count, state=state, summaries=(*self._at.summaries, *summaries)
        )

    async def _turn(self) -> Done[object] | None:
        """Run one turn; keep the state it continues, or return what it is done with."""
        segment, number = self._segment, self._at.turns
        segment.executed += 1
        # A copy: a turn that fails half-way must not have changed what the next try gets.
        state = parse_value(json_text(self._at.state))
        answer = await call(segment, self._plan.turn, (state, number))
        if isinstance(answer, Done):
            done = Done(normalize(answer.result, path="$.result"))
            self._at = self._moved(self._at.state, number + 1)
            return done
        if not isinstance(answer, Continue):
            message = f"a turn must return Continue(state) or Done(result), not {answer!r}"
            raise ConfigError(message)
        self._at = self._moved(normalize(answer.state, path="$.state"), number + 1)
        await self._put(self._checkpoint_ref, self._at.encode())
        await self._compact()
        return None

    async def _begin_loop(self) -> None:
        """Go on from the last checkpoint of an earlier segment, if there is one to trust.

        A retry that has kept none of its own yet goes on from the try before it.
        """
        for one in self._segment.replay.tries_of(self._opening):
            ref = f"{self._segment.run_id}/ckpt/{one.seq}"
            blob = await self._get(ref)
            if blob is not None:
                await self._boot_from(ref, blob, one.seq)
                return

    async def _boot_from(self, ref: str, blob: bytes, dispatch: int) -> None:
        try:
            kept = Checkpoint.decode(
                blob,
                genesis=self._at.genesis,
                dispatch=dispatch,
            )
        except ValueError as error:
            _log.warning(
                "run %r: the checkpoint %s is refused, its turns start over: %s",
                self._segment.run_id,
                ref,
                error,
            )
            self._segment.emit("checkpoint.refused", name=ref, detail=str(error))
        else:
            # A limit that was lowered meanwhile ends the loop with what it has come to.
            limit = max(kept.turns, self._plan.max_turns)
            self._at = replace(kept, dispatch=self._opening.seq, limit=limit)
            await self._compact()  # the segment before may have died over it

    async def _compact(self) -> None:
        """Make a long state shorter, once: the turn itself is kept already."""
        compact, count = self._plan.compact, self._at.turns
        made = [summary for summary in self._at.summaries if summary.endswith(f"/{count}")]
        if compact is None or made or not compact.when(self._at.state, count):
            return
        ref = f"{self._segment.run_id}/summary/{self._opening.seq}/{count}"
        state = await self._made_before(ref)
        if state is None:
            shorter = await call(self._segment, compact.make, (self._at.state, count))
            state = replace(
                self._at,
                state=normalize(shorter, path="$.summary"),
                summaries=(),
                made_of=self._state_hash,
            )
            await self._put(ref, state.encode())
        self._at = self._moved(state.state, count, ref)
        await self._put(self._checkpoint_ref, self._at.encode())

    @property
    def _state_hash(self) -> str:
        return hashlib.sha256(json_text(self._at.state).encode("utf-8")).hexdigest()

    async def _made_before(self, ref: str) -> Checkpoint | None:
        """Return a summary that was kept before the crash that lost its checkpoint.

        An attempt that has started over may come to another state: its summary is another.
        """
        blob = await self._get(ref)
        if blob is None:
            return None
        try:
            kept = Checkpoint.decode(blob, genesis=self._at.genesis, dispatch=self._at.dispatch)
        except ValueError:
            return None  # not ours: it is made, and overwrites what lies there
        same = (kept.turns, kept.made_of) == (self._at.turns, self._state_hash)
        return kept if same else None

    async def _get(self, ref: str) -> bytes | None:
        return await self._segment.get_blob(ref)

    async def _put(self, ref: str, blob: bytes) -> None:
        await self._segment.put_blob(ref, blob)

"""What a body sees of a failure is what was journalled, in the first life as in every later."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
from typing import TYPE_CHECKING, NoReturn

import pytest

from rulvar.core.engine import Engine, RetryPolicy, workflow
from rulvar.core.errors import RunFailedError, StepFailedError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.events import Event


class Bench:
    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.stores = Stores(self.store, self.store.transcripts())
        self.events: list[Event] = []

    def run(
        self, body: Workflow, *others: Workflow, args: object = None, resume: bool = False
    ) -> RunOutcome:
        async def main() -> RunOutcome:
            async with Engine(
                self.stores,
                [body, *others],
                observer=self.events.append,
            ) as engine:
                if resume:
                    return await engine.resume("r")
                return await engine.run(body, args, run_id="r")

        return asyncio.run(main())

    def crash(self) -> None:
        """Forget the settle, as if the process had died just before it."""
        self.store._tables._runs["r"].records.pop()

    def errors(self) -> list[dict[str, object]]:
        entries = read_journal("r", self.store.load("r"))
        return [dict(entry.error) for entry in entries if entry.error is not None]


def fails() -> NoReturn:
    above = ConnectionError("upstream 503")
    above.add_note("asked for page 7")
    raise above from KeyError("below")


async def fails_later() -> NoReturn:
    await asyncio.sleep(0)
    fails()


async def fails_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails_later())


async def a_step(ctx: Context, _folder: Path) -> object:
    return await ctx.step("s", fails)


async def an_async_step(ctx: Context, _folder: Path) -> object:
    policy = RetryPolicy(attempts=2, wait_initial=0, wait_jitter=0)
    return await ctx.step("s", fails_later, retry=policy)


async def a_group(ctx: Context, _folder: Path) -> object:
    return await ctx.step("s", fails_in_a_group)


async def a_bad_result(ctx: Context, _folder: Path) -> object:
    return await ctx.step("s", lambda: {1, 2})


async def a_turn(ctx: Context, _folder: Path) -> object:
    return await ctx.turns("s", lambda _state, _n: fails(), 0)


async def a_worktree(ctx: Context, folder: Path) -> object:
    return await ctx.worktree("s", folder, lambda _path: fails())


async def a_child(ctx: Context, _folder: Path) -> object:
    return await ctx.child("s", child)


async def a_wait(ctx: Context, _folder: Path) -> object:
    return await ctx.await_external("s", timeout=0.001)


async def a_branch(ctx: Context, folder: Path) -> object:
    return await ctx.parallel("p", [lambda c: a_step(c, folder), lambda c: a_turn(c, folder)])


@workflow
async def child(ctx: Context) -> object:
    return await ctx.step("s", fails)


def visible(error: BaseException) -> list[object]:
    """Everything that a body can take a branch on."""
    return [
        type(error).__name__,
        str(error),
        list(map(str, error.args)),
        sorted((name, str(value)) for name, value in vars(error).items()),
        repr(error.__cause__),
        repr(error.__context__),
        error.__suppress_context__,
    ]


CALLS = [
    a_step,
    an_async_step,
    a_group,
    a_bad_result,
    a_turn,
    a_worktree,
    a_child,
    a_wait,
    a_branch,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for command in ("init -q", "-c user.name=n -c user.email=e commit -q --allow-empty -m m"):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("inside_a_handler", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_failure_is_the_same_live_and_in_a_replay(
    call: Callable[[Context, Path], Awaitable[object]], inside_a_handler: bool, folder: Path
) -> None:
    bench = Bench()
    seen: list[list[object]] = []

    async def guarded(ctx: Context) -> None:
        try:
            await call(ctx, folder)
        except StepFailedError as error:
            seen.append(visible(error))

    @workflow
    async def body(ctx: Context, _: object) -> None:
        if not inside_a_handler:
            await guarded(ctx)
            return
        try:
            int("the body's own")
        except ValueError:
            await guarded(ctx)

    assert bench.run(body, child).status == "ok"
    bench.crash()
    assert bench.run(body, child, resume=True).executed == 0
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][4] == "None", "no cause, ever"
    assert "below" not in str(seen[0])


def test_the_journal_keeps_notes_and_the_traceback() -> None:
    bench = Bench()
    noted: list[str] = []

    @workflow
    async def body(ctx: Context, _: object) -> object:
        try:
            await ctx.step("s", fails)
        except StepFailedError as error:
            noted.extend(error.__notes__)
            error.add_note("of the body")
            raise
        return None

    outcome = bench.run(body)
    assert noted == ["asked for page 7"]
    of_step, of_run = bench.errors()
    expected = (["asked for page 7"], ["asked for page 7", "of the body"])
    for error, notes in zip((of_step, of_run), expected, strict=True):
        data = error["data"]
        assert isinstance(data, dict)
        assert data["notes"] == notes
        told = str(data["traceback"])
        assert __file__ in told
        assert "rulvar/core/engine" not in told.splitlines()[1], "it begins with the user's line"
    assert "KeyError: 'below'" in json.dumps(of_step)
    assert outcome.error is not None
    assert outcome.error.notes == ("asked for page 7", "of the body")
    with pytest.raises(StepFailedError) as caught:
        outcome.unwrap()
    assert caught.value.__notes__ == ["asked for page 7", "of the body"]
    assert "traceback" not in repr(outcome)
    assert bench.run(body, resume=True).error == outcome.error


def deep_group() -> NoReturn:
    inner = ExceptionGroup("inner", [ConnectionError("a"), OSError("b")])
    message = "outer"
    raise ExceptionGroup(message, [inner, ValueError("c")])


@pytest.mark.parametrize("in_a_step", [True, False])
def test_a_groups_members_are_kept_and_told(in_a_step: bool) -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context, _: object) -> object:
        if not in_a_step:
            deep_group()
        return await ctx.step("s", deep_group)

    outcome = bench.run(body)
    assert outcome.error is not None
    for part in ("ConnectionError: a", "OSError: b", "ValueError: c"):
        assert part in outcome.error.message
    inner, last = outcome.error.members
    assert [member.message for member in inner.members] == ["a", "b"]
    assert (last.error_type, last.message, last.members) == ("ValueError", "c", ())
    assert bench.run(body, resume=True).error == outcome.error
    with pytest.raises(StepFailedError if in_a_step else RunFailedError) as caught:
        outcome.unwrap()
    assert "OSError: b" in str(caught.value)
    if isinstance(caught.value, StepFailedError):
        assert pickle.loads(pickle.dumps(caught.value)).members == outcome.error.members


def huge() -> NoReturn:
    error: Exception = ValueError("v" * 100_000)
    for _ in range(50):
        error = ExceptionGroup("g" * 100_000, [error] * 3)
    for _ in range(1_000):
        error.add_note("n" * 100_000)
    raise error


def recursive(depth: int = 900) -> NoReturn:
    if depth:
        recursive(depth - 1)
    message = "\ud800 at the bottom"
    raise ValueError(message)


@pytest.mark.parametrize("function", [huge, recursive])
def test_what_is_kept_of_a_failure_is_bounded(function: Callable[[], NoReturn]) -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context, _: object) -> object:
        return await ctx.step("s", function)

    assert bench.run(body).status == "error"
    assert max(len(record.payload) for record in bench.store.load("r")) < 250_000


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "on", "tries"),
    [
        ([ConnectionError("x")], ConnectionError, 3),
        ([ConnectionError("x"), TimeoutError("y")], OSError, 3),
        ([ConnectionError("x"), ValueError("y")], OSError, 1),
        ([ConnectionError("x"), ValueError("y")], (OSError, ValueError), 3),
        ([ConnectionError("x"), ValueError("y")], ExceptionGroup, 3),
        ([ExceptionGroup("inner", [ConnectionError("x")])], ConnectionError, 3),
        ([ConnectionError("x")], lambda error: "x" in str(error) and len(str(error)) == 1, 3),
        ([ConnectionError("x"), ConnectionError("yy")], lambda error: str(error) == "x", 1),
        ([ConnectionError("x")], Exception, 3),
    ],
)
def test_a_policy_looks_into_groups(
    held: list[Exception],
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool],
    tries: int,
) -> None:
    made: list[int] = []

    def throws() -> NoReturn:
        made.append(1)
        message = "several"
        raise ExceptionGroup(message, held)

    @workflow
    async def body(ctx: Context, _: object) -> object:
        policy = RetryPolicy(attempts=3, on=on, wait_initial=0, wait_jitter=0)
        return await ctx.step("s", throws, retry=policy)

    assert Bench().run(body).status == "error"
    assert len(made) == tries


def test_a_retry_is_told_in_events_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            message = f"upstream {500 + len(tries)}"
            raise ConnectionError(message)
        return "fine"

    @workflow
    async def body(ctx: Context, _: object) -> str:
        policy = RetryPolicy(attempts=4, wait_initial=0.02, wait_jitter=0)
        return await ctx.step("call-api", flaky, retry=policy)

    assert bench.run(body).value == "fine"
    retried = [event for event in bench.events if event.kind == "step.retried"]
    told = [(event.name, event.count, event.duration, event.detail) for event in retried]
    assert told == [
        ("call-api", 1, 0.02, "ConnectionError: upstream 501"),
        ("call-api", 2, 0.04, "ConnectionError: upstream 502"),
    ]
    assert {event.seq for event in retried} == {1}
    [finished] = [event for event in bench.events if event.kind == "step.finished"]
    assert (finished.detail, finished.count) == ("ok", 3)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert {record.name for record in warnings} == {"rulvar.engine"}
    assert caplog.messages[0] == (
        "run 'r': step 'call-api': attempt 1 of 4 failed (ConnectionError: upstream 501); "
        "retrying in 0.02 s"
    )

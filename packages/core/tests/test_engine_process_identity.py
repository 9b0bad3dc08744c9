"""Owner strings say which process holds a lease, and only the kernel's word makes it dead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core import process_identity
from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.process_identity import (
    LONGEST_IDENTITY,
    is_provably_gone,
    own_identity,
    parse_owner,
    readable_part,
)
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, WatchedStores, reference_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.core.engine import Context
    from rulvar.core.process_identity import ProcessIdentity
    from rulvar.core.testing import StoreCall

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems do not tell"
)

TELLS = """
from rulvar.core.process_identity import own_identity
print(own_identity(), flush=True)
input()
"""


class Other:
    """Another process of this machine, which tells its identity and waits."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TELLS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.identity = self.process.stdout.readline().strip()
        self.owner = f"somewhere:7:{self.identity}:token"

    def kill(self) -> None:
        """Kill it, and leave it a zombie until `reap`."""
        self.process.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def other() -> Iterator[Other]:
    there = Other()
    try:
        yield there
    finally:
        there.reap()


def mine() -> ProcessIdentity:
    identity = own_identity()
    assert identity is not None
    return identity


def owner_of(identity: ProcessIdentity) -> str:
    return f"host:1:{identity}:0123456789abcdef"


def test_an_owner_string_tells_its_process_and_stays_readable() -> None:
    owner = owner_of(mine())
    assert parse_owner(owner) == mine()
    assert readable_part(owner) == "host:1"
    assert mine().pid == os.getpid()
    assert readable_part("caller") == "caller"


@pytest.mark.parametrize(
    "owner",
    ["", "me", "me:p1:token", "p1.a.b.1.2.3", "::", "host:1:0123456789abcdef", "me:p1.x:y"],
)
def test_a_string_of_another_writer_proves_nothing(owner: str) -> None:
    assert parse_owner(owner) is None
    assert not is_provably_gone(owner)


@pytest.mark.slow
def test_a_process_is_gone_when_it_was_killed_and_before_it_was_reaped(other: Other) -> None:
    assert not is_provably_gone(other.owner)
    other.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert not is_provably_gone(other.owner)  # frozen is not gone
    other.kill()
    assert is_provably_gone(other.owner)  # a zombie
    other.reap()
    assert is_provably_gone(other.owner)


@pytest.mark.slow
def test_a_leader_that_ended_while_its_threads_go_on_is_not_gone() -> None:
    script = (
        "import ctypes, threading, time\n"
        "from rulvar.core.process_identity import own_identity\n"
        "def go_on():\n"
        "    while 'Z' not in open('/proc/self/stat').read().rpartition(')')[2][:3]:\n"
        "        time.sleep(0.01)\n"
        "    print(own_identity(), flush=True); time.sleep(60)\n"
        "own_identity()\n"
        "threading.Thread(target=go_on).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        owner = f"me:{identity}:t"
        assert parse_owner(owner) is not None
        assert not is_provably_gone(owner)
    finally:
        process.kill()
        process.communicate()
    assert is_provably_gone(owner)


@pytest.mark.slow
def test_a_process_id_that_was_used_again_is_another_process(other: Other) -> None:
    found = parse_owner(other.owner)
    assert found is not None
    assert is_provably_gone(owner_of(replace(found, start=found.start - 1)))
    assert is_provably_gone(owner_of(replace(mine(), start=mine().start - 1)))
    assert not is_provably_gone(owner_of(mine()))


CHANGES: dict[str, Callable[[ProcessIdentity], ProcessIdentity]] = {
    "another machine": lambda it: replace(it, machine="0" * 12),
    "another machine, another boot": lambda it: replace(it, machine="0" * 12, boot="0" * 12),
    "a container": lambda it: replace(it, namespace=it.namespace + 1),
    "a container of an earlier boot": lambda it: replace(
        it, namespace=it.namespace + 1, boot="0" * 12
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_cannot_be_seen_from_here_proves_nothing(
    change: Callable[[ProcessIdentity], ProcessIdentity], other: Other
) -> None:
    other.kill()
    dead = parse_owner(other.owner)
    assert dead is not None
    assert not is_provably_gone(owner_of(change(dead)))


@pytest.mark.parametrize("ours", [True, False])
def test_an_earlier_boot_of_this_machine_is_gone_in_the_machines_own_namespace(
    monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    there = replace(mine(), boot="0" * 12, namespace=0xEFFFFFFC)
    here = replace(mine(), namespace=0xEFFFFFFC if ours else 4026532999)
    monkeypatch.setattr(process_identity, "_own", (os.getpid(), here))
    assert is_provably_gone(owner_of(there)) is ours


@pytest.mark.slow
def test_a_machine_that_tells_nothing_proves_nothing(
    other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.kill()
    monkeypatch.setattr(process_identity, "_own", (os.getpid(), None))
    assert not is_provably_gone(other.owner)


@pytest.mark.slow
def test_a_forked_child_has_an_identity_of_its_own() -> None:
    before = str(mine())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(own_identity()).encode())
        os._exit(0)
    os.close(writing)
    told = os.read(reading, 200).decode()
    os.close(reading)
    assert not is_provably_gone(f"me:{before}:t")
    os.waitpid(child, 0)
    assert told != before
    assert is_provably_gone(f"me:{told}:t")
    assert str(mine()) == before


# --- the engine -----------------------------------------------------------------------------


@workflow
async def answers(ctx: Context) -> int:
    return await ctx.step("one", lambda: 1)


def held_by(owner: str) -> Stores:
    store = ReferenceStore(lease_ttl_ms=600_000)
    store.acquire("r", owner)
    return Stores(store, store.transcripts())


def dead_owner(other: Other) -> str:
    other.kill()
    return other.owner


def run_one(stores: Stores | WatchedStores, owner: str | None = None) -> tuple[object, int]:
    async def main() -> tuple[object, int]:
        async with Engine(stores, [answers], owner=owner) as engine:
            outcome = await engine.run(answers, run_id="r")
            return outcome.value, outcome.epoch or 0

    return asyncio.run(main())


@pytest.mark.slow
def test_a_run_whose_holder_is_gone_is_taken_at_once(other: Other) -> None:
    stores = held_by(dead_owner(other))
    assert run_one(stores) == (1, 2)


@pytest.mark.slow
def test_a_run_of_a_frozen_holder_is_left_alone(other: Other) -> None:
    stores = held_by(other.owner)
    os.kill(other.process.pid, signal.SIGSTOP)
    with pytest.raises(LeaseHeldError) as refused:
        run_one(stores)
    assert (refused.value.reason, refused.value.holder) == ("held", other.owner)


@pytest.mark.slow
def test_a_store_that_shows_no_lease_is_waited_for(other: Other) -> None:
    stores = held_by(dead_owner(other))
    blind = WatchedStores(stores, without={"seize", "get_lease", "list_leases"})
    with pytest.raises(LeaseHeldError, match="held"):
        run_one(blind)


@pytest.mark.slow
def test_two_that_have_proved_the_same_death_do_not_take_the_run_from_each_other(
    other: Other,
) -> None:
    """Both are refused by the dead one's lease before either seizes."""
    stores = held_by(dead_owner(other))
    both = threading.Barrier(2)
    ends: list[object] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "seize":
            both.wait(20)
        return perform()

    @workflow(name="answers")
    async def holds(ctx: Context) -> int:
        return await ctx.step("one", lambda: both.wait(20))

    def one() -> None:
        async def main() -> object:
            async with Engine(WatchedStores(stores, around=around), [holds]) as engine:
                try:
                    return (await engine.run(holds, run_id="r")).status
                except LeaseHeldError as error:
                    await asyncio.to_thread(both.wait, 20)  # the other is in its step by now
                    return error.reason

        ends.append(asyncio.run(main()))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, ends)) == ["held", "ok"]


def test_owner_strings_have_room_for_what_the_engine_is_called() -> None:
    stores = reference_stores()
    seen: list[str] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "acquire":
            seen.append(str(call.arguments[1]))
        return perform()

    run_one(WatchedStores(stores, around=around), owner="x" * 110)
    assert parse_owner(seen[0]) == mine()
    assert len(seen[0]) <= 200
    assert 110 + 1 + LONGEST_IDENTITY + 1 + 16 <= 200
    with pytest.raises(ConfigError, match="at most 110"):
        Engine(stores, owner="x" * 111)

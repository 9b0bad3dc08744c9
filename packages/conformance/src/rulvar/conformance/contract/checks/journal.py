"""Journals: promises A1 to A5."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.checks import MAX_INTEGER, MAX_PAYLOAD_BYTES
from rulvar.core.errors import ConfigError, JournalOrderViolation
from rulvar.core.records import JournalRecord, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="A1, A2, A3, A4, A5")


@CLAUSES.clause("A1-whole", "A reader never sees a part of a record.", source="A1")
def _whole(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    writer, reader = check.actor("writer"), check.actor("reader")
    written = [record(seq, check.mark(), filling=40_000 + seq) for seq in range(24)]
    done = threading.Event()

    def write() -> None:
        try:
            for each in written:
                writer.append_record(run, each)
        finally:
            done.set()

    def read() -> None:
        while True:
            last = done.is_set()
            for found, expected in zip(reader.journal.load(run), written, strict=False):
                check.require(found == expected, "every record that is read is whole", "a part")
            if last:
                return

    check.together([write, read, read])
    check.equal("the journal", writer.load(run), tuple(written))
    short = check.run_id("short")
    check.actor("writer").append(short, 0)
    interleave(check, lambda: _read_at_append(check, short))


def _read_at_append(check: CheckContext, run: str) -> Interleaving:
    journal, reader = check.stores.journal, check.another_handle().journal
    before = tuple(journal.load(run))
    added = record(before[-1].seq + 1, check.mark(), filling=300)

    def judge(_: Ending, read: Ending, where: str) -> None:
        if read.error is not None:
            check.fail("the journal can be read", f"{read.words()} ({where})")
        whole = tuple(read.value) in {before, (*before, added)}  # type: ignore[arg-type]
        check.require(whole, "the journal with the record or without it", f"a part ({where})")

    return Interleaving(lambda: journal.append(run, added), lambda: reader.load(run), judge)


@CLAUSES.clause("A2-order", "A journal is loaded in the order of its appends.", source="A2")
def _order(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    check.equal("the journal of an unknown run", worker.load(run), ())
    written = [worker.append(run, seq) for seq in (0, 1, 2, 9, 10, 11, 99, 100, 1000, 2**40)]
    check.equal("the journal", worker.load(run), tuple(written))


@CLAUSES.clause(
    "A2-same-each-time",
    "Two loads of a journal are equal, and share nothing with the store.",
    source="A2",
)
def _same(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    written = [worker.append(run, seq) for seq in range(5)]
    first = worker.journal.load(run)
    if isinstance(first, list):
        first.clear()  # a caller may do as it likes with what it got
    check.equal("the second load", worker.load(run), tuple(written))
    for found in worker.load(run):
        check.equal("the type of a payload", type(found.payload).__name__, "bytes")


@CLAUSES.clause(
    "A2-runs-apart",
    "Appends of several runs at once end each in its own journal.",
    source="A2",
)
def _runs_apart(check: CheckContext) -> None:
    runs = [check.run_id(f"run-{number}") for number in range(6)]
    workers = [check.actor(f"worker-{number}") for number in range(6)]

    def work(number: int) -> Callable[[], list[JournalRecord]]:
        return lambda: [workers[number].append(runs[number], seq) for seq in range(8)]

    written = check.together([work(number) for number in range(6)])
    for run, mine in zip(runs, written, strict=True):
        check.equal(f"the journal of {run!r}", check.actor("reader").load(run), tuple(mine))
    interleave(check, lambda: _append_to_each(check, runs[0], runs[1]), most=30)


def _append_to_each(check: CheckContext, one: str, other: str) -> Interleaving:
    journal = check.stores.journal
    seq = journal.load(one)[-1].seq + 1
    mine, theirs = record(seq, check.mark()), record(seq, check.mark())

    def judge(first: Ending, second: Ending, where: str) -> None:
        for run, added, ending in ((one, mine, first), (other, theirs, second)):
            check.require(ending.returned, f"the append to {run!r} lands", ending.words())
            check.equal(f"the end of {run!r} ({where})", tuple(journal.load(run)[-1:]), (added,))

    return Interleaving(
        lambda: journal.append(one, mine), lambda: journal.append(other, theirs), judge
    )


@CLAUSES.clause("A3-next-load", "When an append has returned, the next load has it.", source="A3")
def _next_load(check: CheckContext) -> None:
    run = check.run_id()
    worker, reader = check.actor("worker"), check.actor("reader")
    for seq in range(10):
        written = worker.append(run, seq)
        found = reader.load(run)
        check.require(found and found[-1] == written, f"seq {seq} is there", found[-1:])


@CLAUSES.clause(
    "A3-other-handle",
    "What has returned on one handle is there on every other one at once.",
    source="A3",
    sharing=Sharing.PROCESS,
)
def _other_handle(check: CheckContext) -> None:
    run = check.run_id()
    one, other = check.actor("one"), check.actor("other", check.reopen())
    quiet = check.actor("quiet", check.reopen())
    for seq in range(0, 12, 2):
        first = one.append(run, seq)
        check.equal("the other's last record", other.load(run)[-1:], (first,))
        second = other.append(run, seq + 1)
        check.equal("the one's last record", one.load(run)[-1:], (second,))
        meta = one.put_meta(run)
        for reader in (other, quiet):
            rows = [row for row in reader.journal.list_runs(None) if row.run_id == run]
            check.equal("the row that the other lists", rows, [meta])
        # A handle that never writes may sit in an old view of everything.
        check.equal("what one that only reads loads", quiet.load(run)[-2:], (first, second))
        if check.has_blobs:
            blob = one.put(f"{run}/turn")
            check.equal("the blob that it gets", quiet.get(f"{run}/turn"), blob)


@CLAUSES.clause(
    "A3-reopen",
    "Everything is there after the last handle was closed and the store opened again.",
    source="A3",
    sharing=Sharing.PROCESS,
)
def _reopen(check: CheckContext) -> None:
    run, gone = check.run_id(), check.run_id("gone")
    worker = check.actor("worker")
    for seq in range(6):
        worker.append(run, seq)
    worker.put_meta(run)
    worker.append(gone, 0)
    worker.put_meta(gone)
    if check.has_blobs:
        worker.put(f"{run}/turn")
        worker.put(f"{run}/deep/er", b"")
    if check.claims(Level.LEASABLE):
        worker.renew(worker.acquire(run))
    worker.delete(gone)
    before = check.snapshot()
    check.stores.close()
    check.equal("the state after reopening", check.snapshot(check.reopen()), before)


def _payloads() -> Iterator[tuple[int, bytes]]:
    yield 0, b'{"seq":0}'
    yield 1, b' \t\r\n{ "seq" : 1 , "a" : [ 1 , 2 ] } \n'
    yield 2, b'{"z":1,"seq":2,"a":{"y":null,"b":true}}'
    yield 3, '{"seq":3,"text":"\u00e9 e\u0301 \u2028 \U0001f600"}'.encode()
    yield 4, b'{"seq":4,"escaped":"\\u00e9 \\ud83d\\ude00 \\/ \\u0000 \\u001f"}'
    yield 5, b'{"seq":5,"lone":"\\ud800"}'
    yield 6, b'{"seq":6,"numbers":[1.0,1e2,1E400,-0,-0.0,0.1000,12345678901234567890123]}'
    yield 7, b'{"seq":7,"deep":' + b"[" * 199 + b"]" * 199 + b"}"
    yield 8, b'{"seq":8,"":"","nested":{"seq":"other"}}'
    yield 9, b'{"se\\u0071":9}'
    yield 10, b'{"seq":10,"long":"' + b"x" * 300_000 + b'"}'
    yield MAX_INTEGER, b'{"seq":9007199254740991}'


@CLAUSES.clause("A4-bytes", "A payload comes back byte for byte.", source="A4")
def _bytes(check: CheckContext) -> None:
    worker = check.actor("worker")
    for run, lease in check.tenures(worker, Level.LEASABLE):
        for seq, data in _payloads():
            worker.append_record(run, JournalRecord(seq=seq, payload=data), lease=lease)
        found = worker.load(run)
        check.equal("the number of records", len(found), len(list(_payloads())))
        for (seq, data), each in zip(_payloads(), found, strict=True):
            check.equal(f"the payload of seq {seq}", each.payload, data)
            check.equal("its seq", each.seq, seq)


@CLAUSES.clause("A4-largest", "A payload may have 16 MiB, and no byte more.", source="A4")
def _largest(check: CheckContext) -> None:
    worker = check.actor("worker")
    head, tail = b'{"seq":0,"filling":"', b'"}'
    data = head + b"x" * (MAX_PAYLOAD_BYTES - len(head) - len(tail)) + tail
    large, larger = (JournalRecord(seq=0, payload=each) for each in (data, data + b" "))
    for run, lease in check.tenures(worker, Level.LEASABLE):
        worker.raising(ConfigError).append_record(run, larger, lease=lease)
        worker.append_record(run, large, lease=lease)
        check.require(worker.journal.load(run)[0].payload == data, "all 16 MiB", "something else")


def _wrong_records() -> Iterator[tuple[str, object]]:
    yield "no record", b'{"seq":1}'
    yield "text instead of bytes", JournalRecord(seq=1, payload='{"seq":1}')  # type: ignore[arg-type]
    yield "a bytearray", JournalRecord(seq=1, payload=bytearray(b'{"seq":1}'))  # type: ignore[arg-type]
    for what, data in (
        ("nothing", b""),
        ("an array", b"[1]"),
        ("no seq", b'{"a":1}'),
        ("another seq", b'{"seq":2}'),
        ("a seq as text", b'{"seq":"1"}'),
        ("a seq as a fraction", b'{"seq":1.0}'),
        ("a seq with an exponent", b'{"seq":1e0}'),
        ("a seq of true", b'{"seq":true}'),
        ("a seq twice", b'{"seq":1,"seq":1}'),
        ("a member twice", b'{"seq":1,"a":1,"a":2}'),
        ("a member twice, deep", b'{"seq":1,"b":{"a":1,"a":1}}'),
        ("NaN", b'{"seq":1,"a":NaN}'),
        ("Infinity", b'{"seq":1,"a":-Infinity}'),
        ("a comment", b'{"seq":1/**/}'),
        ("a comma too many", b'{"seq":1,}'),
        ("single quotes", b"{'seq':1}"),
        ("a byte order mark", b'\xef\xbb\xbf{"seq":1}'),
        ("no UTF-8", b'{"seq":1,"a":"\xff"}'),
        ("a surrogate in UTF-8", b'{"seq":1,"a":"\xed\xa0\x80"}'),
        ("a raw control character", b'{"seq":1,"a":"\x01"}'),
        ("something after it", b'{"seq":1} x'),
        ("two objects", b'{"seq":1}{"seq":1}'),
        ("white space of no JSON", b'{"seq":1}\xc2\xa0'),
        ("201 levels", b'{"seq":1,"a":' + b"[" * 200 + b"]" * 200 + b"}"),
    ):
        yield what, JournalRecord(seq=1, payload=data)
    for seq in (-1, MAX_INTEGER + 1, True, 1.0, "1", None):
        text = json.dumps(seq).encode()
        wrong = JournalRecord(seq=seq, payload=b'{"seq":' + text + b"}")  # type: ignore[arg-type]
        yield f"the seq {seq!r}", wrong


@CLAUSES.clause(
    "A4-refused",
    "A payload that is no JSON object with its seq is refused as ConfigError, and lands nowhere.",
    source="A4",
)
def _refused(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.append(run, 0)
    for what, wrong in _wrong_records():
        strict = worker.raising(ConfigError)

        def offer(each: object = wrong) -> None:
            worker.journal.append(run, each)  # type: ignore[arg-type] # it is meant to be wrong

        strict.call(f"append({run!r}, {what})", offer)
    worker.append(run, 1)


@CLAUSES.clause(
    "A5-guard",
    "A seq that is not above the largest stored one is refused, and gaps are allowed.",
    source="A5",
)
def _guard(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.append(run, 7)
    for tail, steps in ((7, (7, 0, 6)), (9, (9, 8)), (10, (9, 10)), (100, (99, 11, 9, 10))):
        if tail > 7:  # noqa: PLR2004 - the first one is there
            worker.append(run, tail)
        for seq in steps:
            worker.out_of_order().append(run, seq)
    worker.append(run, MAX_INTEGER)
    for seq in (MAX_INTEGER, MAX_INTEGER - 1, 101, 0):
        worker.out_of_order().append(run, seq)


@CLAUSES.clause(
    "A5-first",
    "The first seq of a journal may be any, and another run's tail is no matter.",
    source="A5",
)
def _first(check: CheckContext) -> None:
    worker = check.actor("worker")
    for name, seq in (("a", 1000), ("b", 3), ("c", 0), ("d", MAX_INTEGER)):
        first = worker.append(check.run_id(name), seq)
        check.equal(f"the journal of {name}", worker.load(check.run_id(name)), (first,))
    for name, seq in (("b", 4), ("c", 1), ("a", 1001)):
        later = worker.append(check.run_id(name), seq)
        check.equal(f"the end of {name}", worker.load(check.run_id(name))[-1:], (later,))


@CLAUSES.clause(
    "A5-error",
    "The refusal names the run, the seq offered, and the true tail if any.",
    source="A5",
)
def _error(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.append(run, 5)
    try:
        worker.journal.append(run, record(3, check.mark()))
    except JournalOrderViolation as error:
        check.equal("the run of the error", error.run_id, run)
        check.equal("its seq", error.seq, 3)
        check.require(error.tail_seq in {None, 5}, "its tail is 5, or not known", error.tail_seq)
    else:
        check.fail("JournalOrderViolation", "it returned")


@CLAUSES.clause(
    "A5-one-wins",
    "Of several appends of one seq at once exactly one lands, and it is the one that returned.",
    source="A5",
)
def _one_wins(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    for seq in range(10):
        rivals = [record(seq, check.mark()) for _ in range(6)]
        won = check.together([_try_append(check.actor("rival"), run, each) for each in rivals])
        check.equal(f"how many appends of seq {seq} returned", won.count(True), 1)
        winner = rivals[won.index(True)]
        check.equal("the last record", check.actor("reader").load(run)[-1:], (winner,))
    interleave(check, lambda: _append_the_same(check, run))


def _append_the_same(check: CheckContext, run: str) -> Interleaving:
    one, other = check.actor("one"), check.actor("other", check.another_handle())
    before = tuple(one.journal.load(run))
    mine = record(before[-1].seq + 1, check.mark())
    theirs = record(mine.seq, check.mark())

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            refused = isinstance(ending.error, JournalOrderViolation)
            check.require(ending.returned or refused, "it lands or is refused", ending.words())
        won = [each for each, end in ((mine, first), (theirs, second)) if end.value is True]
        check.equal(f"how many appends of seq {mine.seq} returned ({where})", len(won), 1)
        check.equal("the journal", tuple(one.journal.load(run)), (*before, *won))

    return Interleaving(_try_append(one, run, mine), _try_append(other, run, theirs), judge)


def _try_append(actor: Actor, run_id: str, written: JournalRecord) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            actor.journal.append(run_id, written)
        except JournalOrderViolation:
            return False  # the other one was first
        return True

    return attempt


@CLAUSES.clause(
    "A5-threads",
    "With many appenders of one run a journal only ever grows at its end, by what returned.",
    source="A2, A3, A5",
)
def _threads(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    offered = [[record(seq, check.mark()) for seq in range(n, 60, 5)] for n in range(5)]
    working = list(range(len(offered)))

    def write(number: int) -> Callable[[], list[JournalRecord]]:
        actor = check.actor("appender")

        def work() -> list[JournalRecord]:
            try:
                return [each for each in offered[number] if _try_append(actor, run, each)()]
            finally:
                working.remove(number)

        return work

    def watch() -> list[JournalRecord]:
        before: tuple[JournalRecord, ...] = ()
        while working:
            now = tuple(check.stores.journal.load(run))
            check.require(now[: len(before)] == before, "what was loaded stays as it was", now[-3:])
            before = now
        return []

    landed = check.together([*(write(number) for number in range(5)), watch])
    found = check.actor("reader").load(run)
    expected = sorted((each for mine in landed for each in mine), key=lambda each: each.seq)
    check.equal("what was loaded", found, tuple(expected))


@CLAUSES.clause(
    "A-tail",
    "load_after returns what lies above a seq, at most as many as asked for, in order.",
    source="JournalTail",
    capability="JournalTail",
)
def _tail(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    written = [worker.append(run, seq) for seq in (0, 1, 5, 9, 10, 100)]
    for after in (-1, 0, 1, 4, 5, 9, 10, 99, 100, MAX_INTEGER):
        for limit in (1, 2, 100):
            found = list(worker.journal.load_after(run, after, limit))
            expected = [each for each in written if each.seq > after][:limit]
            check.equal(f"load_after({after}, {limit})", found, expected)
    unknown = list(worker.journal.load_after(check.run_id("unknown"), -1, 5))
    check.equal("the tail of an unknown run", unknown, [])
    for wrong in ((-2, 1), (0, 0), (0, -1), (True, 1), (0, 1.5)):
        worker.raising(ConfigError).call(
            f"load_after{wrong}",
            lambda each=wrong: worker.journal.load_after(run, *each),  # type: ignore[misc] # wrong on purpose
        )


@CLAUSES.clause(
    "A-inventory",
    "list_run_ids names every run of which there is a trace, by UTF-8 bytes, in pages.",
    source="RunInventory",
    capability="RunInventory",
)
def _inventory(check: CheckContext) -> None:
    worker = check.actor("worker")
    names = [check.run_id(name) for name in ("entries", "row", "lease", "Blob", "\u00e9", "~")]
    worker.append(names[0], 0)
    worker.put_row(RunMeta(run_id=names[1], status="ok", updated_at="2026-01-01T00:00:00.000Z"))
    expected = {names[0], names[1]}
    if check.claims(Level.LEASABLE):
        worker.acquire(names[2])
        expected.add(names[2])
    if check.has_blobs:
        worker.put(f"{names[3]}/x")
        expected.add(names[3])
    worker.append(names[4], 0)
    worker.append(names[5], 0)
    worker.delete(names[5])
    expected.add(names[4])
    for limit in (1, 2, 1000):
        found = [each for each in _pages(worker, limit) if each in names]
        check.equal(f"the ids in pages of {limit}", found, sorted(expected))


def _pages(worker: Actor, limit: int) -> Iterator[str]:
    after: str | None = None
    while True:
        page = list(worker.journal.list_run_ids(after, limit))
        yield from page
        if len(page) < limit:
            return
        after = page[-1]

"""Transcripts: blobs beside the journal (family T)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.capabilities import fencing_domain_of
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.TRANSCRIPTS, source="TranscriptStore")


@CLAUSES.clause("T-bytes", "A blob comes back byte for byte, the empty one too.")
def _bytes(check: CheckContext) -> None:
    worker = check.actor("worker")
    blobs = {
        "empty": b"",
        "zero": b"\0",
        "all": bytes(range(256)) * 40,
        "text": "\u00e9 e\u0301 \U0001f600\r\n".encode(),
        "no-text": b"\xff\xfe\x80",
        "sql": b"'; DROP TABLE blobs; --",
        "large": check.random.randbytes(3_000_001),
    }
    for run, lease in check.tenures(worker, Level.FENCED_PAIR):
        for name, blob in blobs.items():
            worker.put(f"{run}/{name}", blob, lease=lease)
        for name, blob in blobs.items():
            found = worker.get(f"{run}/{name}")
            check.require(type(found) is bytes, f"{name} as bytes", type(found).__name__)
            check.require(found == blob, f"the bytes of {name}", repr(found)[:100])


@CLAUSES.clause("T-large", "A blob of 64 MiB comes back whole.")
def _large(check: CheckContext) -> None:
    ref = f"{check.run_id()}/large"
    worker = check.actor("worker")
    blob = check.random.randbytes(1024) * (64 * 1024)
    try:
        worker.call("put(64 MiB)", lambda: worker.transcripts.put(ref, blob))
        check.require(worker.transcripts.get(ref) == blob, "the same 64 MiB", "something else")
    finally:
        worker.transcripts.delete(ref)
    check.equal("the blob after its removal", worker.get(ref), None)


@CLAUSES.clause("T-replace", "A blob replaces the one before.")
def _replace(check: CheckContext) -> None:
    worker = check.actor("worker")
    for run, lease in check.tenures(worker, Level.FENCED_PAIR):
        ref = f"{run}/turn"
        for blob in (b"a long first one" * 100, b"short", b"", b"longer again"):
            worker.put(ref, blob, lease=lease)
            check.equal("the blob", worker.get(ref), blob)
        check.equal("the refs", worker.list_refs(run), (ref,))


@CLAUSES.clause("T-missing", "A missing blob is None, and its removal does nothing.")
def _missing(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    check.equal("the blob", worker.get(f"{run}/none"), None)
    check.equal("the refs", worker.list_refs(run), ())
    worker.delete_blob(f"{run}/none")
    worker.put(f"{run}/one")
    worker.delete_blob(f"{run}/none")
    worker.delete_blob(f"{run}/one/two")
    check.equal("the refs", worker.list_refs(run), (f"{run}/one",))
    worker.delete_blob(f"{run}/one")
    worker.delete_blob(f"{run}/one")
    check.equal("the blob", worker.get(f"{run}/one"), None)


@CLAUSES.clause("T-aliasing", "What a caller does to its bytes later changes no blob.")
def _aliasing(check: CheckContext) -> None:
    ref = f"{check.run_id()}/turn"
    worker = check.actor("worker")
    kept = worker.put(ref, b"as it was")
    buffer = bytearray(b"will change")

    def offer(value: object) -> Callable[[], None]:
        return lambda: worker.transcripts.put(ref, value)  # type: ignore[arg-type] # wrong on purpose

    strict = worker.raising(ConfigError)
    for what, value in (
        ("a bytearray", buffer),
        ("a memoryview", memoryview(buffer)),
        ("text", "text"),
        ("None", None),
    ):
        strict.call(f"put({ref!r}, {what})", offer(value))
    check.equal("the blob", worker.get(ref), kept)
    refs = worker.transcripts.list_refs(check.run_id())
    if isinstance(refs, list):
        refs.clear()
    check.equal("the refs", worker.list_refs(check.run_id()), (ref,))


@CLAUSES.clause("T-refs", "A run's refs are its own, all of them, by their UTF-8 bytes.")
def _refs(check: CheckContext) -> None:
    worker = check.actor("worker")
    names = ("b", "a", "B", "a/b", "a/b/c", "a.b", "a-b", "10", "9", "\u00e9", "%", "_", " ", "a:b")
    runs = [
        check.run_id(name) for name in ("run", "run2", "ru", "run.1", "RUN", "run%", "ru_", "r*")
    ]
    for run in runs:
        for name in names:
            worker.put(f"{run}/{name}", f"{run} {name}".encode())
    for run in runs:
        expected = sorted((f"{run}/{name}" for name in names), key=str.encode)
        check.equal(f"the refs of {run!r}", worker.list_refs(run), tuple(expected))
    worker.delete_blob(f"{runs[0]}/a/b")
    check.equal("the sibling below", worker.get(f"{runs[0]}/a/b/c"), f"{runs[0]} a/b/c".encode())
    check.equal("the sibling above", worker.get(f"{runs[0]}/a"), f"{runs[0]} a".encode())
    for run in runs[1:]:
        check.equal("another run's", worker.get(f"{run}/a/b"), f"{run} a/b".encode())


@CLAUSES.clause("T-threads", "Blobs written at once by many threads are each whole.")
def _threads(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    blobs = [bytes([number]) * (50_000 + number) for number in range(8)]

    def write(actor: Actor, number: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(3):
                actor.transcripts.put(f"{run}/own-{number}", blobs[number])
                actor.transcripts.put(f"{run}/shared", blobs[number])
                found = actor.transcripts.get(f"{run}/shared")
                check.require(found in blobs, "one of the blobs, whole", repr(found)[:80])

        return work

    check.together([write(check.actor("writer"), number) for number in range(8)])
    for number, blob in enumerate(blobs):
        check.require(
            check.stores.transcripts.get(f"{run}/own-{number}") == blob, "its own", "another"
        )
    interleave(check, lambda: _get_at_put(check, f"{run}/shared"))


def _get_at_put(check: CheckContext, ref: str) -> Interleaving:
    blobs, reader = check.stores.transcripts, check.another_handle().transcripts
    before, after = blobs.get(ref), f"blob {check.mark()}".encode() * 100

    def judge(put: Ending, read: Ending, where: str) -> None:
        for ending in (put, read):
            check.require(ending.returned, "the call returns", ending.words())
        whole = read.value in {before, after}
        check.require(whole, f"the blob before or after, whole ({where})", repr(read.value)[:80])

    return Interleaving(lambda: blobs.put(ref, after), lambda: reader.get(ref), judge)


@CLAUSES.clause(
    "T-info",
    "blob_info tells a blob's true size, and None for a missing one.",
    source="BlobInfo",
    capability="BlobInfo",
)
def _info(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    check.equal("what is known of nothing", worker.transcripts.blob_info(f"{run}/none"), None)
    texts = ("", "x", "\0" * 7, "\u00e9" * 40_000, "\u20ac" * 5, "\U0001f600" * 9, "\r\n")
    for blob in (*(text.encode() for text in texts), b"\xff" * 100_000, b"\xff" * 3):
        size = len(blob)
        worker.put(f"{run}/turn", blob)
        info = worker.transcripts.blob_info(f"{run}/turn")
        if info is None:
            check.fail("something is known", "None")
        check.equal("the ref and size", (info.ref, info.size_bytes), (f"{run}/turn", size))


@CLAUSES.clause(
    "T-other-handle",
    "A blob is there on every handle as soon as its put returned.",
    sharing=Sharing.PROCESS,
)
def _other_handle(check: CheckContext) -> None:
    run = check.run_id()
    one, other = check.actor("one"), check.actor("other", check.reopen())
    for number in range(4):
        blob = one.put(f"{run}/{number}")
        check.equal("the blob", other.get(f"{run}/{number}"), blob)
        other.delete_blob(f"{run}/{number}")
        check.equal("the blob after its removal", one.get(f"{run}/{number}"), None)


@CLAUSES.clause(
    "T-domain",
    "The two stores of a fenced pair name one fencing domain.",
    source="Attributes",
    level=Level.FENCED_PAIR,
)
def _domain(check: CheckContext) -> None:
    ours = fencing_domain_of(check.stores.journal)
    theirs = fencing_domain_of(check.stores.transcripts)
    check.equal("the transcript store's fencing domain", theirs, ours)
    check.require(ours is None or ours, "no empty name", repr(ours))

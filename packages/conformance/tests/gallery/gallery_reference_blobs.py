"""Broken transcripts over the reference store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gallery_over_reference import broken_twin

from rulvar.core.checks import check_ref, check_run_id, run_of_ref
from rulvar.core.testing import ReferenceTranscripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import BlobStat, Lease
    from rulvar.core.testing import ReferenceStore


# --- bytes ----------------------------------------------------------------------------------


@broken_twin("blob-empty-is-none", "an empty blob comes back as None", breaks="T-bytes")
class _EmptyIsNone(ReferenceTranscripts):
    def get(self, ref: str, /) -> bytes | None:
        return super().get(ref) or None


@broken_twin("blob-as-text", "a blob goes through text and back", breaks="T-bytes")
class _AsText(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        if type(blob) is bytes:
            blob = blob.decode(errors="replace").encode()
        super().put(ref, blob, lease=lease)


@broken_twin("blob-returned-mutable", "get returns a bytearray", breaks="T-bytes")
class _ReturnedMutable(ReferenceTranscripts):
    def get(self, ref: str, /) -> bytes | None:
        found = super().get(ref)
        return None if found is None else bytearray(found)  # type: ignore[return-value]


@broken_twin(
    "blob-kept-by-reference",
    "a bytearray is taken, and changes the blob when its owner changes it",
    breaks="T-aliasing",
)
class _KeptByReference(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        if type(blob) is bytes:
            super().put(ref, blob, lease=lease)
            return
        with self._store._gate.passing():
            self._store._fence(run_of_ref(check_ref(ref)), lease)
            self._store._tables.put_blob(ref, blob, None)


@broken_twin("blob-cut-at-16-mib", "what is above 16 MiB is cut off", breaks="T-large")
class _Cut(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        super().put(ref, blob[: 16 * 1024 * 1024], lease=lease)


@broken_twin("blob-put-keeps-first", "a second put at a ref changes nothing", breaks="T-replace")
class _KeepsFirst(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        super().put(ref, blob if self.get(ref) is None else self.get(ref) or b"", lease=lease)


@broken_twin(
    "blob-put-in-place",
    "a blob is written over the one before, whose longer end stays",
    breaks="T-replace",
)
class _InPlace(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        before = self.get(ref) or b""
        whole = blob + before[len(blob) :] if type(blob) is bytes else blob
        super().put(ref, whole, lease=lease)


@broken_twin(
    "blob-put-in-parts",
    "a blob is written in two parts, and a reader sees the first",
    breaks="T-threads",
)
class _InParts(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        super().put(ref, blob[: len(blob) // 2], lease=lease)
        for _ in range(200):
            self.get(ref)  # it takes its time
        super().put(ref, blob, lease=lease)


# --- refs -----------------------------------------------------------------------------------


@broken_twin(
    "list-refs-by-prefix",
    "the refs of a run are all that begin like it: those of run-2 are listed for run",
    breaks="T-refs",
)
class _ByPrefix(ReferenceTranscripts):
    def list_refs(self, run_id: str, /) -> Sequence[str]:
        check_run_id(run_id)
        with self._store._gate.passing():
            runs = [run for run in self._store._tables.run_ids() if run.startswith(run_id)]
            return tuple(sorted(ref for run in runs for ref in self._store._tables.refs(run)))


@broken_twin("list-refs-top-level", "a ref of three segments is not listed", breaks="T-refs")
class _TopLevel(ReferenceTranscripts):
    def list_refs(self, run_id: str, /) -> Sequence[str]:
        return tuple(ref for ref in super().list_refs(run_id) if ref.count("/") == 1)


@broken_twin(
    "blob-delete-by-prefix",
    "the removal of a/b removes a/b/c as well",
    breaks="T-refs",
)
class _DeletesBelow(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        super().delete(ref, lease=lease)
        for other in self.list_refs(run_of_ref(ref)):
            if other.startswith(f"{ref}/"):
                super().delete(other, lease=lease)


@broken_twin(
    "blob-delete-missing-raises",
    "the removal of a blob that is not there is a KeyError",
    breaks="T-missing",
)
class _MissingRaises(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        if self.get(ref) is None:
            raise KeyError(ref)
        super().delete(ref, lease=lease)


@broken_twin("blob-get-missing-empty", "a missing blob is empty", breaks="T-missing")
class _MissingIsEmpty(ReferenceTranscripts):
    def get(self, ref: str, /) -> bytes | None:
        return super().get(ref) or b""


@broken_twin("blob-info-unknown-size", "blob_info tells a rounded size", breaks="T-info")
class _RoundedSize(ReferenceTranscripts):
    def blob_info(self, ref: str, /) -> BlobStat | None:
        found = super().blob_info(ref)
        if found is None:
            return None
        return type(found)(
            ref=ref, size_bytes=-(-found.size_bytes // 1024) * 1024, stored_at=found.stored_at
        )


@broken_twin(
    "ref-unchecked", "a ref may have dots, empty segments and no name", breaks="I-refs-refused"
)
class _TakesAnyRef(ReferenceTranscripts):
    def get(self, ref: str, /) -> bytes | None:
        try:
            return super().get(ref)
        except Exception:  # noqa: BLE001 - this is the defect
            return None


@broken_twin(
    "fencing-domain-of-its-own",
    "the twin names another fencing domain than its store",
    breaks="T-domain",
)
class _OtherDomain(ReferenceTranscripts):
    def __init__(self, store: ReferenceStore, /) -> None:
        super().__init__(store)
        self.fencing_domain = f"{store.fencing_domain}-blobs"


@broken_twin(
    "blob-marker-without-lease",
    "the twin declares the marker, and its put takes no lease",
    breaks="C-marker-pair",
)
class _TakesNoLease(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /) -> None:  # type: ignore[override]
        super().put(ref, blob)

"""Broken stores over the SQLite store: blobs, and where one run ends and the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gallery_defects import defect, sqlite
from gallery_sqlite_tools import worded

from rulvar.stores.sqlite import SqliteStore, schema

if TYPE_CHECKING:
    from rulvar.core import Lease

__all__: list[str] = []

# --- deletion ---------------------------------------------------------------------------------

defect(
    "sqlite-delete-by-prefix",
    "delete takes along the journals of runs whose ids begin alike",
    breaks="D1-removes",
    build=lambda home: worded(
        home,
        DELETE_RUN=("DELETE FROM entries WHERE run_id LIKE ?1 || '%'", *schema.DELETE_RUN[1:]),
    ),
)

defect(
    "sqlite-fenced-delete-takes-all-rows",
    "a deletion under a lease removes the rows of all runs",
    breaks="D1-removes",
    build=lambda home: worded(
        home,
        DELETE_RUN_FENCED=(
            schema.DELETE_RUN_FENCED[0],
            f"DELETE FROM meta WHERE {schema.LIVE}",
            schema.DELETE_RUN_FENCED[2],
        ),
    ),
    storm=True,
)

defect(
    "sqlite-delete-keeps-lease",
    "delete leaves the lease row, and its holder goes on",
    breaks="D1-lease",
    build=lambda home: worded(
        home,
        DELETE_RUN=(*schema.DELETE_RUN[:2], "DELETE FROM leases WHERE run_id = ?1 AND false"),
    ),
)


class _EatsBlobs(SqliteStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete_whole_run(run_id, lease=lease)


defect(
    "sqlite-delete-eats-blobs",
    "delete removes the blobs as well",
    breaks="D1-blobs",
    build=lambda home: sqlite(home, _EatsBlobs),
)


class _ForgetsBlobs(SqliteStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)


defect(
    "sqlite-delete-whole-run-forgets-blobs",
    "delete_whole_run leaves the blobs",
    breaks="D-whole",
    build=lambda home: sqlite(home, _ForgetsBlobs),
)

defect(
    "sqlite-delete-whole-run-by-prefix",
    "delete_whole_run takes along the blobs of runs whose ids begin alike",
    breaks="D-whole",
    build=lambda home: worded(home, DELETE_BLOBS="DELETE FROM blobs WHERE ref LIKE ?1 || '%'"),
)

defect(
    "sqlite-fenced-delete-whole-run-takes-all-blobs",
    "delete_whole_run under a lease removes the blobs of all runs",
    breaks="D-whole",
    build=lambda home: worded(home, DELETE_BLOBS_FENCED=f"DELETE FROM blobs WHERE {schema.LIVE}"),
    storm=True,
)

# --- blobs ------------------------------------------------------------------------------------

defect(
    "sqlite-blob-get-by-name",
    "a blob is looked up by its name, and the latest of any run is found",
    breaks="I-apart",
    build=lambda home: worded(
        home,
        GET_BLOB=(
            "SELECT data FROM blobs WHERE substr(ref, instr(ref, '/')) = "
            "substr(?1, instr(?1, '/')) ORDER BY rowid DESC LIMIT 1"
        ),
    ),
    storm=True,
)

defect(
    "sqlite-list-refs-by-pattern",
    "the run id is a pattern when its refs are listed",
    breaks="T-refs",
    build=lambda home: worded(
        home, LIST_REFS="SELECT ref FROM blobs WHERE ref LIKE ?1 || '/%' ORDER BY ref"
    ),
)

defect(
    "sqlite-blob-delete-takes-those-below",
    "the removal of a blob takes along those whose refs go on from there",
    breaks="T-refs",
    build=lambda home: worded(
        home,
        DELETE_BLOB=(
            "DELETE FROM blobs WHERE ref = ?1 OR substr(ref, 1, length(?1) + 1) = ?1 || '/'"
        ),
    ),
)

defect(
    "sqlite-blob-put-keeps-first",
    "a blob that is there already stays as it is",
    breaks="T-replace",
    build=lambda home: worded(
        home, PUT_BLOB="INSERT OR IGNORE INTO blobs (run_id, ref, data) VALUES (?1, ?2, ?3)"
    ),
)

defect(
    "sqlite-blob-is-text",
    "a blob is kept as text, up to its first zero",
    breaks="T-bytes",
    build=lambda home: worded(
        home,
        GET_BLOB=(
            "SELECT CASE instr(data, x'00') WHEN 0 THEN data "
            "ELSE coalesce(substr(data, 1, instr(data, x'00') - 1), x'') END "
            "FROM blobs WHERE ref = ?1"
        ),
    ),
)

defect(
    "sqlite-blob-info-counts-characters",
    "blob_info tells how many characters a blob has",
    breaks="T-info",
    build=lambda home: worded(
        home, BLOB_SIZE="SELECT length(CAST(data AS TEXT)) FROM blobs WHERE ref = ?1"
    ),
)

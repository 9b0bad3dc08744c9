"""The shared layout, and every statement that runs against it.

The five tables are common property: a store in another language may have the same file open,
so nothing here may change them. What this distribution needs beyond them is named
``rulvar_...``: two indexes on ``meta`` (every writer's SQLite maintains them) and the table
``rulvar_barrier``, made only when a disk has reported an error (see `commits`).

Parameters are numbered alike everywhere: ``?1`` the run, ``?2`` the owner, ``?3`` the epoch,
``?4`` now in Unix milliseconds; what a statement needs besides starts at ``?5``.

An expression index is matched by spelling: `SEQ` must stay letter for letter what the index
says, or every append reads every payload of its run. A test asserts the plans.
"""

from __future__ import annotations

# Statements are put together from constants of this page alone.
# ruff: noqa: S608

__all__ = ["COLUMNS", "OBJECTS"]

SEQ = "CAST(json_extract(payload, '$.seq') AS INTEGER)"
STATUS = "json_extract(payload, '$.status')"
NAME = "json_extract(payload, '$.name')"

OBJECTS: dict[str, str] = {
    "entries": (
        "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY AUTOINCREMENT, "
        "run_id TEXT NOT NULL, payload TEXT NOT NULL)"
    ),
    "entries_by_run": "CREATE INDEX IF NOT EXISTS entries_by_run ON entries (run_id, id)",
    "entries_run_seq": f"CREATE INDEX IF NOT EXISTS entries_run_seq ON entries (run_id, {SEQ})",
    "meta": "CREATE TABLE IF NOT EXISTS meta (run_id TEXT PRIMARY KEY, payload TEXT NOT NULL)",
    "meta_by_status": f"CREATE INDEX IF NOT EXISTS meta_by_status ON meta ({STATUS})",
    "meta_by_name": f"CREATE INDEX IF NOT EXISTS meta_by_name ON meta ({NAME})",
    "leases": (
        "CREATE TABLE IF NOT EXISTS leases (run_id TEXT PRIMARY KEY, owner TEXT NOT NULL, "
        "epoch INTEGER NOT NULL, expires_at INTEGER NOT NULL)"
    ),
    "epochs": (
        "CREATE TABLE IF NOT EXISTS epochs (run_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL)"
    ),
    "blobs": (
        "CREATE TABLE IF NOT EXISTS blobs (ref TEXT PRIMARY KEY, run_id TEXT NOT NULL, "
        "data BLOB NOT NULL)"
    ),
    "blobs_by_run": "CREATE INDEX IF NOT EXISTS blobs_by_run ON blobs (run_id)",
    "rulvar_meta_by_status": (
        f"CREATE INDEX IF NOT EXISTS rulvar_meta_by_status ON meta ({STATUS}, run_id)"
    ),
    "rulvar_meta_by_name": (
        f"CREATE INDEX IF NOT EXISTS rulvar_meta_by_name ON meta ({NAME}, run_id)"
    ),
}
"""What a file must have, in the order of making; each statement is a no-op where it is there."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "entries": ("id", "run_id", "payload"),
    "meta": ("run_id", "payload"),
    "leases": ("run_id", "owner", "epoch", "expires_at"),
    "epochs": ("run_id", "epoch"),
    "blobs": ("ref", "run_id", "data"),
}
"""A file whose tables of these names have other columns is another application's."""

NAMES_PRESENT = "SELECT name FROM sqlite_schema"
COLUMN_NAMES = "SELECT name FROM pragma_table_info(?1) ORDER BY cid"

# --- the fence ---------------------------------------------------------------------------

LIVE = (
    "EXISTS (SELECT 1 FROM leases AS held, epochs AS mark "
    "WHERE held.run_id = ?1 AND mark.run_id = ?1 AND held.owner = ?2 "
    "AND held.epoch = ?3 AND mark.epoch = ?3 AND held.expires_at > ?4)"
)
"""The lease is live. A row of another epoch than the tombstone's is dead (contract.md#epochs)."""

MINE = (
    "run_id = ?1 AND owner = ?2 AND epoch = ?3 AND expires_at > ?4 "
    "AND EXISTS (SELECT 1 FROM epochs AS mark WHERE mark.run_id = ?1 AND mark.epoch = ?3)"
)
"""The same, as the condition of a statement on the lease row itself."""

JUDGE = (
    "SELECT mark.epoch, held.owner, held.epoch, held.expires_at FROM (SELECT ?1 AS run_id) AS run "
    "LEFT JOIN epochs AS mark ON mark.run_id = run.run_id "
    "LEFT JOIN leases AS held ON held.run_id = run.run_id"
)

# --- mutations ---------------------------------------------------------------------------

TAIL = f"SELECT max({SEQ}) FROM entries WHERE run_id = ?1"

LANDED = f"SELECT EXISTS (SELECT 1 FROM entries WHERE run_id = ?1 AND {SEQ} = ?3 AND payload = ?2)"

APPEND = f"INSERT INTO entries (run_id, payload) SELECT ?1, ?2 WHERE ?3 > coalesce(({TAIL}), -1)"
APPEND_FENCED = (
    "INSERT INTO entries (run_id, payload) SELECT ?1, ?5 "
    f"WHERE {LIVE} AND ?6 > coalesce(({TAIL}), -1)"
)

_REPLACE_META = "ON CONFLICT (run_id) DO UPDATE SET payload = excluded.payload"
PUT_META = f"INSERT INTO meta (run_id, payload) VALUES (?1, ?2) {_REPLACE_META}"
PUT_META_FENCED = f"INSERT INTO meta (run_id, payload) SELECT ?1, ?5 WHERE {LIVE} {_REPLACE_META}"

_REPLACE_BLOB = "ON CONFLICT (ref) DO UPDATE SET run_id = excluded.run_id, data = excluded.data"
PUT_BLOB = f"INSERT INTO blobs (run_id, ref, data) VALUES (?1, ?2, ?3) {_REPLACE_BLOB}"
PUT_BLOB_FENCED = (
    f"INSERT INTO blobs (run_id, ref, data) SELECT ?1, ?5, ?6 WHERE {LIVE} {_REPLACE_BLOB}"
)
DELETE_BLOB = "DELETE FROM blobs WHERE ref = ?1"
DELETE_BLOB_FENCED = f"DELETE FROM blobs WHERE ref = ?5 AND {LIVE}"

DELETE_RUN = (
    "DELETE FROM entries WHERE run_id = ?1",
    "DELETE FROM meta WHERE run_id = ?1",
    "DELETE FROM leases WHERE run_id = ?1",
)
DELETE_RUN_FENCED = (
    f"DELETE FROM entries WHERE run_id = ?1 AND {LIVE}",
    f"DELETE FROM meta WHERE run_id = ?1 AND {LIVE}",
    f"DELETE FROM leases WHERE {MINE}",
)
"""The lease goes last: until then it guards the others, and its count is the outcome."""
DELETE_BLOBS = "DELETE FROM blobs WHERE run_id = ?1"
DELETE_BLOBS_FENCED = f"DELETE FROM blobs WHERE run_id = ?1 AND {LIVE}"

RENEW = f"UPDATE leases SET expires_at = ?5 WHERE {MINE}"
RELEASE = f"DELETE FROM leases WHERE {MINE}"

_SOMEBODY = (
    "EXISTS (SELECT 1 FROM leases AS held, epochs AS mark WHERE held.run_id = ?1 "
    "AND mark.run_id = ?1 AND mark.epoch = held.epoch AND held.expires_at > ?4)"
)
_RAISE = "ON CONFLICT (run_id) DO UPDATE SET epoch = excluded.epoch"
ACQUIRE = f"INSERT INTO epochs (run_id, epoch) SELECT ?1, ?3 WHERE NOT {_SOMEBODY} {_RAISE}"
SEIZE = f"INSERT INTO epochs (run_id, epoch) SELECT ?1, ?3 WHERE true {_RAISE}"
SEIZE_OVER = (
    "INSERT INTO epochs (run_id, epoch) SELECT ?1, ?3 WHERE EXISTS (SELECT 1 "
    "FROM leases AS held, epochs AS mark WHERE held.run_id = ?1 AND mark.run_id = ?1 "
    f"AND held.owner = ?5 AND held.epoch = ?6 AND mark.epoch = ?6) {_RAISE}"
)
REVIVE = (
    "UPDATE epochs SET epoch = ?5 WHERE run_id = ?1 AND epoch = ?3 AND EXISTS (SELECT 1 "
    "FROM leases AS held WHERE held.run_id = ?1 AND held.owner = ?2 AND held.epoch = ?3 "
    "AND held.expires_at <= ?4)"
)
GRANT = (
    "INSERT INTO leases (run_id, owner, epoch, expires_at) VALUES (?1, ?2, ?3, ?4) "
    "ON CONFLICT (run_id) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, "
    "expires_at = excluded.expires_at"
)
RAISE_EPOCH = (
    "INSERT INTO epochs (run_id, epoch) SELECT ?1, ?3 WHERE ?3 > 0 "
    "ON CONFLICT (run_id) DO UPDATE SET epoch = max(epoch, excluded.epoch)"
)
END_LEASE = "DELETE FROM leases WHERE run_id = ?1"

BARRIER = (
    "CREATE TABLE IF NOT EXISTS rulvar_barrier (id INTEGER PRIMARY KEY, passed INTEGER NOT NULL)",
    (
        "INSERT INTO rulvar_barrier (id, passed) VALUES (1, 1) "
        "ON CONFLICT (id) DO UPDATE SET passed = passed + 1"
    ),
)

# --- reads -------------------------------------------------------------------------------

# Text is read as its bytes: what comes back is what was written, and bytes that are no
# UTF-8 are reported with their place instead of failing inside the driver.
LOAD = "SELECT CAST(payload AS BLOB) FROM entries WHERE run_id = ?1 ORDER BY id"
LOAD_AFTER = (
    f"SELECT id, CAST(payload AS BLOB) FROM entries WHERE run_id = ?1 AND {SEQ} > ?2 "
    f"ORDER BY {SEQ}, id LIMIT ?3"
)
WITHOUT_SEQ = f"SELECT min(id) FROM entries WHERE run_id = ?1 AND {SEQ} IS NULL"
POSITION = "SELECT count(*) FROM entries WHERE run_id = ?1 AND id < ?2"
GET_META = "SELECT CAST(payload AS BLOB) FROM meta WHERE run_id = ?1"
# A page begins after an id's bytes, so that one which is no UTF-8 cannot end a listing.
_PAGE = (
    "SELECT CAST(run_id AS BLOB), CAST(payload AS BLOB) FROM meta "
    "WHERE run_id > CAST(?1 AS TEXT) AND typeof(run_id) = 'text'"
)
LIST_ALL = f"{_PAGE} ORDER BY run_id LIMIT ?2"
LIST_BY_STATUS = f"{_PAGE} AND {STATUS} = ?3 ORDER BY run_id LIMIT ?2"
LIST_BY_NAME = f"{_PAGE} AND {NAME} = ?3 ORDER BY run_id LIMIT ?2"

GET_BLOB = "SELECT data FROM blobs WHERE ref = ?1"
BLOB_SIZE = "SELECT length(data) FROM blobs WHERE ref = ?1"
LIST_REFS = "SELECT CAST(ref AS BLOB) FROM blobs WHERE run_id = ?1 AND ref <> run_id ORDER BY ref"

_LEASE_ROW = (
    "SELECT CAST(held.run_id AS BLOB), CAST(held.owner AS BLOB), held.epoch, held.expires_at, "
    "coalesce(mark.epoch = held.epoch, false) "
    "FROM leases AS held LEFT JOIN epochs AS mark ON mark.run_id = held.run_id "
)
GET_LEASE = f"{_LEASE_ROW} WHERE held.run_id = ?1"
LIST_LEASES = f"{_LEASE_ROW} WHERE held.run_id > ?1 ORDER BY held.run_id LIMIT ?2"


def _distinct(table: str) -> str:
    """Return a walk over a table's run ids that jumps from one to the next in the index."""
    return (
        f"WITH RECURSIVE run (id) AS (SELECT min(run_id) FROM {table} WHERE run_id > ?1 "
        f"UNION ALL SELECT (SELECT min(run_id) FROM {table} WHERE run_id > run.id) "
        "FROM run WHERE run.id IS NOT NULL) "
        "SELECT CAST(id AS BLOB), typeof(id) FROM run WHERE id IS NOT NULL LIMIT ?2"
    )


LIST_RUN_IDS = tuple(_distinct(table) for table in ("entries", "meta", "leases", "blobs"))

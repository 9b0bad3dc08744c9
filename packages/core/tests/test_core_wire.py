"""What is taken for a payload, a row, a value and a time."""

from __future__ import annotations

import json
import string
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.checks import (
    MAX_META_BYTES,
    MAX_PAYLOAD_BYTES,
    check_filter,
    check_meta,
    check_record,
)
from rulvar.core.errors import ConfigError
from rulvar.core.filters import matches
from rulvar.core.records import (
    RUN_STATUSES,
    TERMINAL_STATUSES,
    BlobStat,
    Blocked,
    JournalRecord,
    JsonMembers,
    Lease,
    LeaseInfo,
    RunFilter,
    RunMeta,
)
from rulvar.core.values import MAX_INTEGER
from rulvar.core.wire import (
    InvalidJSONError,
    decode_meta,
    encode_meta,
    format_time,
    parse_json,
    parse_time,
)

REFUSED_PAYLOADS: list[tuple[str, int, bytes]] = [
    ("byte order mark", 0, b'\xef\xbb\xbf{"seq":0}'),
    ("UTF-16", 0, '{"seq":0}'.encode("utf-16-le")),
    ("UTF-16 with mark", 0, '{"seq":0}'.encode("utf-16")),
    ("UTF-32", 0, '{"seq":0}'.encode("utf-32-be")),
    ("raw surrogate", 0, b'{"seq":0,"v":"\xed\xa0\x80"}'),
    ("overlong UTF-8", 0, b'{"seq":0,"v":"\xc0\x80"}'),
    ("NUL and garbage after", 0, b'{"seq":0}\x00garbage'),
    ("NUL before", 0, b'\x00{"seq":0}'),
    ("raw control character in a string", 0, b'{"seq":0,"v":"\x01"}'),
    ("other white space", 0, b'\x0b{"seq":0}'),
    ("other white space behind", 0, b'{"seq":0}\x0b'),
    ("other white space behind, not ASCII", 0, '{"seq":0}\u00a0'.encode()),
    ("no-break space", 0, b'\xc2\xa0{"seq":0}'),
    ("two objects", 0, b'{"seq":0}{"seq":0}'),
    ("nothing", 0, b""),
    ("white space alone", 0, b" \n"),
    ("an array", 0, b'[{"seq":0}]'),
    ("a number", 0, b"0"),
    ("null", 0, b"null"),
    ("no seq", 0, b"{}"),
    ("seq 1.0", 1, b'{"seq":1.0}'),
    ("seq 1e3", 1000, b'{"seq":1e3}'),
    ("seq 1.5", 1, b'{"seq":1.5}'),
    ("seq true", 1, b'{"seq":true}'),
    ("seq text", 7, b'{"seq":"7"}'),
    ("seq array", 5, b'{"seq":[5]}'),
    ("seq null", 0, b'{"seq":null}'),
    ("seq -0", 0, b'{"seq":-0}'),
    ("seq -1", 0, b'{"seq":-1}'),
    ("seq 2^63", 0, b'{"seq":9223372036854775808}'),
    ("seq 1e25", 0, b'{"seq":1e25}'),
    ("seq 1E400", 0, b'{"seq":1E400}'),
    ("seq of 5,000 digits", 0, b'{"seq":' + b"9" * 5000 + b"}"),
    ("seq with a leading zero", 7, b'{"seq":07}'),
    ("seq twice", 1, b'{"seq":0,"seq":1}'),
    ("seq twice, once escaped", 1, b'{"seq":1,"\\u0073eq":1}'),
    ("a name twice, deep inside", 0, b'{"seq":0,"a":[{"b":1,"b":1}]}'),
    ("another seq", 1, b'{"seq":2}'),
    ("NaN", 0, b'{"seq":0,"v":NaN}'),
    ("Infinity", 0, b'{"seq":0,"v":-Infinity}'),
    ("trailing comma", 0, b'{"seq":0,}'),
    ("comment", 0, b'{"seq":0/*x*/}'),
    ("single quotes", 0, b"{'seq':0}"),
    ("bare name", 0, b"{seq:0}"),
    ("plus sign", 1, b'{"seq":+1}'),
    ("hexadecimal", 16, b'{"seq":0x10}'),
    ("201 deep", 0, b'{"seq":0,"v":' + b"[" * 200 + b"]" * 200 + b"}"),
    ("100,000 deep", 0, b'{"seq":0,"v":' + b"[" * 100_000),
    ("too large", 0, b'{"seq":0,"v":"' + b"x" * MAX_PAYLOAD_BYTES + b'"}'),
]

TAKEN_PAYLOADS: list[tuple[str, int, bytes]] = [
    ("the smallest", 0, b'{"seq":0}'),
    ("white space around", 3, b' \t\r\n{ "seq" : 3 } \n'),
    ("as large as it may be", 0, b'{"seq":0,"v":"' + b"x" * (16 * 1024 * 1024 - 16) + b'"}'),
    ("the largest seq", MAX_INTEGER, b'{"seq":%d}' % MAX_INTEGER),
    ("seq last and escaped", 1, b'{"v":1,"\\u0073eq":1}'),
    ("an escaped lone surrogate", 0, b'{"seq":0,"v":"\\ud800"}'),
    ("an escaped NUL", 0, b'{"seq":0,"v":"\\u0000"}'),
    ("an integer of 5,000 digits", 0, b'{"seq":0,"v":' + b"9" * 5000 + b"}"),
    ("a number beyond floats", 0, b'{"seq":0,"v":1E400}'),
    ("200 deep", 0, b'{"seq":0,"v":' + b"[" * 199 + b"]" * 199 + b"}"),
    ("many brackets, none deep", 0, b'{"seq":0,"v":[' + b"[]," * 500 + b"[]]}"),
    ("brackets in strings", 0, b'{"seq":0,"v":"' + b'[\\"{' * 500 + b'"}'),
    ("the same name in two objects", 0, b'{"seq":0,"a":{"b":1},"c":{"b":1}}'),
]


@pytest.mark.parametrize(
    ("seq", "payload"),
    [(s, p) for _, s, p in REFUSED_PAYLOADS],
    ids=[n for n, *_ in REFUSED_PAYLOADS],
)
def test_what_is_no_payload_is_refused(seq: int, payload: bytes) -> None:
    with pytest.raises(ConfigError):
        check_record(JournalRecord(seq=seq, payload=payload))


@pytest.mark.parametrize(
    ("seq", "payload"), [(s, p) for _, s, p in TAKEN_PAYLOADS], ids=[n for n, *_ in TAKEN_PAYLOADS]
)
def test_what_is_a_payload_is_taken_as_it_is(seq: int, payload: bytes) -> None:
    record = JournalRecord(seq=seq, payload=payload)
    assert check_record(record) is record
    assert record.payload == payload


@pytest.mark.parametrize("seq", [-1, MAX_INTEGER + 1, True, 1.0, "1", None])
def test_a_seq_is_an_integer_from_0_to_the_largest(seq: object) -> None:
    record = JournalRecord(seq=seq, payload=b'{"seq":1}')  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seq"):
        check_record(record)


def test_a_payload_is_bytes_and_nothing_like_them() -> None:
    for payload in ('{"seq":0}', bytearray(b'{"seq":0}'), None):
        with pytest.raises(ConfigError, match="bytes"):
            check_record(JournalRecord(seq=0, payload=payload))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="JournalRecord"):
        check_record({"seq": 0})


def test_a_byte_order_mark_is_called_by_its_name() -> None:
    with pytest.raises(ConfigError, match="byte order mark"):
        check_record(JournalRecord(seq=0, payload=b'\xef\xbb\xbf{"seq":0}'))


def test_an_unclosed_string_of_escaped_quotes_is_read_once() -> None:
    # Quadratic reading of this would take hours.
    text = "[" * 201 + '"' + '\\"' * 1_000_000
    with pytest.raises(InvalidJSONError):
        parse_json(text)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_what_the_standard_library_writes_is_read_back(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


# --- rows ---------------------------------------------------------------------------------

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40
)
COUNT = st.integers(0, MAX_INTEGER)
JSON_TEXT = st.sampled_from(
    ["null", "1e400", " [1 ,2]", '{"b":1,"a":[]}', '"\\ud800"', "-0", "9" * 400, '"\\u00e9"']
)
KNOWN = frozenset(
    {"runId", "status", "name", "tags", "updatedAt", "hashVersionLow", "hashVersionHigh", "genesis"}
    | {"workflowName", "workflowHash", "workflowSourceRef", "segments", "argsProvided", "argsHash"}
    | {"wakeAt", "parentRunId"}
)
METAS = st.builds(
    RunMeta,
    run_id=st.text(string.ascii_letters, min_size=1, max_size=20),
    status=TEXT,
    updated_at=TEXT,
    name=st.none() | TEXT,
    tags=st.lists(TEXT, max_size=5).map(tuple),
    workflow_name=st.none() | TEXT,
    workflow_hash=st.none() | TEXT,
    workflow_source_ref=st.none() | TEXT,
    segments=st.none() | COUNT,
    genesis=st.none() | TEXT,
    args_provided=st.none() | st.booleans(),
    args_hash=st.none() | TEXT,
    hash_version_low=st.none() | COUNT,
    hash_version_high=st.none() | COUNT,
    wake_at=st.none() | TEXT,
    parent_run_id=st.none() | TEXT,
    extra=st.dictionaries(TEXT.filter(lambda name: name not in KNOWN), JSON_TEXT, max_size=4).map(
        JsonMembers
    ),
)


@pytest.mark.slow
@settings(deadline=None)
@given(METAS)
def test_a_row_comes_back_with_every_member_known_and_unknown(meta: RunMeta) -> None:
    text = check_meta(meta)
    assert text == encode_meta(meta)
    back = decode_meta(meta.run_id, text.encode())
    # White space around an extra value is the row's, not the value's.
    extra = JsonMembers({name: text.strip() for name, text in meta.extra.items()})
    assert back == RunMeta(
        **{name: getattr(meta, name) for name in RunMeta.__dataclass_fields__ if name != "extra"},
        extra=extra,
    )
    assert list(back.extra) == list(meta.extra)
    assert encode_meta(back) == encode_meta(decode_meta(meta.run_id, encode_meta(back)))


def test_a_row_of_another_writer_keeps_order_and_spelling_of_what_is_unknown() -> None:
    text = (
        '{ "zeta" : {"b": 1,  "a":2} , "runId":"other", "status":"ok","updatedAt":"then",'
        '"segments":"three","tags":["a",1],"n\\u0061me":"x","alpha":1.50 }'
    )
    meta = decode_meta("r", text)
    assert (meta.run_id, meta.status, meta.updated_at, meta.name) == ("r", "ok", "then", "x")
    assert meta.segments is None
    assert meta.tags == ()
    assert list(meta.extra.items()) == [
        ("zeta", '{"b": 1,  "a":2}'),
        ("segments", '"three"'),
        ("tags", '["a",1]'),
        ("alpha", "1.50"),
    ]
    assert decode_meta("r", encode_meta(meta)) == meta


def test_every_field_is_written_under_its_name_in_the_row() -> None:
    meta = RunMeta(
        run_id="r\u00e9",
        status="suspended",
        updated_at="2026-01-01T00:00:00.000Z",
        name="n",
        tags=("a", "b"),
        workflow_name="w",
        workflow_hash="sha256:0",
        workflow_source_ref="r/source",
        segments=2,
        genesis="g",
        args_provided=True,
        args_hash="sha256:1",
        hash_version_low=101,
        hash_version_high=102,
        wake_at="2026-01-02T00:00:00.000Z",
        parent_run_id="p",
        workflow_version="2",
        recoveries=3,
        blocked=Blocked(reason="why", since="2026-01-01T00:00:00.000Z", codes=("a", "b")),
        stopped=2,
        extra=JsonMembers({"zeta": "1.50", "alpha": "[ ]"}),
    )
    text = (
        '{"runId":"r\u00e9","status":"suspended","updatedAt":"2026-01-01T00:00:00.000Z",'
        '"name":"n","tags":["a","b"],"workflowName":"w","workflowHash":"sha256:0",'
        '"workflowSourceRef":"r/source","segments":2,"genesis":"g","argsProvided":true,'
        '"argsHash":"sha256:1","hashVersionLow":101,"hashVersionHigh":102,'
        '"wakeAt":"2026-01-02T00:00:00.000Z","parentRunId":"p",'
        '"workflowVersion":"2","recoveries":3,"blocked":{"reason":"why",'
        '"since":"2026-01-01T00:00:00.000Z","codes":["a","b"]},"stopped":2,'
        '"zeta":1.50,"alpha":[ ]}'
    )
    assert encode_meta(meta) == text
    assert decode_meta("r\u00e9", text) == meta
    assert decode_meta("another", text).run_id == "another"  # the key that it stands under


@pytest.mark.parametrize("kind", [Lease, LeaseInfo, JournalRecord, BlobStat, RunMeta, RunFilter])
def test_what_crosses_is_a_value_that_nobody_changes(kind: type) -> None:
    assert is_dataclass(kind)
    given = {each.name: str(number) for number, each in enumerate(fields(kind))}
    if "extra" in given:
        given["extra"] = JsonMembers({"a": "1"})  # type: ignore[assignment] # no text
    one, other = kind(**given), kind(**given)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(FrozenInstanceError):
        setattr(one, fields(kind)[0].name, "x")
    assert not hasattr(one, "__dict__")
    with pytest.raises(TypeError, match="positional"):
        kind(*given.values())


def test_members_of_a_row_can_be_neither_set_nor_added_to() -> None:
    members = JsonMembers({"a": "1"})
    assert not hasattr(members, "__dict__")
    with pytest.raises(TypeError):
        members["b"] = "2"  # type: ignore[index] # what must fail


def test_a_run_has_six_statuses_and_four_of_them_end_it() -> None:
    assert {"running", "suspended", *TERMINAL_STATUSES} == set(RUN_STATUSES)
    assert {"ok", "error", "cancelled", "exhausted"} == TERMINAL_STATUSES


@pytest.mark.parametrize(
    "member",
    [
        '"segments":9007199254740992',
        '"segments":-1',
        '"name":"\\ud800"',
        '"tags":["\\udfff"]',
        '"segments":' + "9" * 5000,
        '"name":' + "9" * 5000,
        '"argsProvided":1',
        '"segments":true',
    ],
)
def test_a_known_member_that_could_not_be_written_again_is_kept_as_it_stands(member: str) -> None:
    meta = decode_meta("r", f'{{"status":"ok","updatedAt":"x",{member}}}')
    name, _, text = member.partition(":")
    assert meta.extra == {json.loads(name): text}
    assert check_meta(meta) == encode_meta(meta)


@pytest.mark.parametrize(
    "row",
    [
        b"[]",
        b"{}",
        b'{"status":"ok"}',
        b'{"status":1,"updatedAt":"x"}',
        b"\xff",
        b"nonsense",
        b'{"status":"ok","updatedAt":null}',
        b'{"status":"ok","status":"ok","updatedAt":"x"}',
    ],
)
def test_what_is_no_row_is_said_to_be_none(row: bytes) -> None:
    with pytest.raises(InvalidJSONError):
        decode_meta("r", row)


TEXTS = {"workflow_name", "workflow_hash", "workflow_source_ref", "genesis", "args_hash"}
TEXTS |= {"wake_at", "parent_run_id"}


def row(**fields: object) -> RunMeta:
    base: dict[str, object] = {"run_id": "r", "status": "ok", "updated_at": "x"}
    return RunMeta(**{**base, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"run_id": "a/b"},
        {"status": ""},
        {"status": 3},
        {"updated_at": ""},
        {"name": "n" * 201},
        {"name": "\ud800"},
        {"tags": ["a"]},
        {"tags": ("t" * 201,)},
        {"tags": ("t",) * 65},
        {"tags": (1,)},
        {"segments": -1},
        {"segments": True},
        {"segments": MAX_INTEGER + 1},
        {"args_provided": 1},
        {"extra": {"a": "1"}},
        {"extra": JsonMembers({"a": "NaN"})},
        {"extra": JsonMembers({"a": "1,2"})},
        {"extra": JsonMembers({"a": '"' + "x" * MAX_META_BYTES + '"'})},
        {"extra": JsonMembers(dict.fromkeys("ab", '"' + "x" * 40_000 + '"'))},
        {"extra": JsonMembers({"a": '"' + "é" * 40_000 + '"'})},
        *({name: "\ud800"} for name in sorted(TEXTS)),
        *({name: "x" * 1_001} for name in sorted(TEXTS)),
        *({name: 2**53} for name in ("segments", "hash_version_low", "hash_version_high")),
    ],
)
def test_a_row_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check_meta(row(**fields))


def test_the_largest_names_and_tags_are_taken() -> None:
    check_meta(row(name="n" * 200, tags=("é" * 200,) * 64))


def test_a_filter_wants_what_it_says() -> None:
    one = row(run_id="b", status="ok", name="x", tags=("p", "q"))
    assert matches(one, RunFilter())
    assert matches(one, RunFilter(statuses=("ok",), name="x", tags=("q", "p"), after_run_id="a"))
    for wanted in (
        RunFilter(statuses=()),
        RunFilter(statuses=("error",)),
        RunFilter(name="y"),
        RunFilter(tags=("p", "z")),
        RunFilter(after_run_id="b"),
    ):
        assert not matches(one, wanted)


@pytest.mark.parametrize(
    "fields",
    [
        {"statuses": ["ok"]},
        {"statuses": "ok"},
        {"limit": 0},
        {"limit": True},
        {"tags": "a"},
        {"after_run_id": "a/b"},
        {"name": 1},
    ],
)
def test_a_filter_out_of_form_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check_filter(RunFilter(**fields))  # type: ignore[arg-type]


# --- times --------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(-62_135_596_800_000 + 1000 * 366 * 86_400_000, 253_402_300_799_999))
def test_a_time_comes_back_to_the_millisecond(unix_ms: int) -> None:
    text = format_time(unix_ms)
    assert len(text) == len("2023-11-14T22:13:20.000Z")
    assert parse_time(text) == unix_ms


def test_times_of_other_writers_are_read() -> None:
    assert format_time(1_700_000_000_000) == "2023-11-14T22:13:20.000Z"
    for text in (
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20.000000+00:00",
        "2023-11-15T00:13:20+02:00",
        "2023-11-14T22:13:20",
    ):
        assert parse_time(text) == 1_700_000_000_000
    with pytest.raises(ValueError, match="yesterday"):
        parse_time("yesterday")

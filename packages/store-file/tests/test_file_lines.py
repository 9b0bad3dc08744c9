"""What a line is, and what the end of a journal is worth: decided without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.core.records import JournalRecord
from rulvar.stores.file.lines import (
    LineError,
    classify_tail,
    decode_line,
    encode_line,
    last_line,
)

if TYPE_CHECKING:
    from rulvar.stores.file.lines import (
        DamageKind,
        TailKind,
    )


def record(seq: int, rest: str = "") -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq}{rest}}}'.encode())


@pytest.mark.parametrize(
    "payload",
    [
        b'{"seq":7}',
        b' {"seq": 7}\t',
        b'{\n  "seq": 7,\n  "v": "\\n"\n}\n',
        b'\r\n{"seq":7}\r',
        '{"v":"é\u2028\u0085\x7f","seq":7}'.encode(),
        '{\n"v":"\\ud800 \U0010ffff \\"{","seq":7}'.encode(),
        b'{"seq":7,"v":{"seq":9}}',
    ],
)
def test_a_payload_is_one_line_and_comes_back_byte_for_byte(payload: bytes) -> None:
    line = encode_line(JournalRecord(seq=7, payload=payload))
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert decode_line(line[:-1]) == JournalRecord(seq=7, payload=payload)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"", "undecodable"),
        (b"{}", "no-record"),
        (b"[1]", "no-record"),
        (b'"text"', "undecodable"),
        (b'"\\ud800"', "undecodable"),
        (b'{"seq":"1"}', "no-record"),
        (b'{"seq":1.0}', "no-record"),
        (b'{"seq":-1}', "no-record"),
        (b'{"seq":true}', "no-record"),
        (b'{"seq":99999999999999999999}', "no-record"),
        (b'{"seq":1,"seq":1}', "undecodable"),
        (b'{"seq":1,"v":NaN}', "undecodable"),
        (b'{"seq":1,"v":"\xff"}', "undecodable"),
        (b'{"seq":1,"v', "undecodable"),
        (b"\0\0\0\0", "nul-run"),
        (b'{"seq":1,"v":"\0"}', "nul-run"),
        (b'{"seq":1}{"seq":2}', "joined"),
        (b'{"seq":1,"v{"seq":2}', "joined"),
    ],
)
def test_what_is_no_record(line: bytes, kind: DamageKind) -> None:
    with pytest.raises(LineError) as caught:
        decode_line(line)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("line", "ended", "kind", "kept", "dropped"),
    [
        (b"", False, "clean", [], 0),
        (b'{"seq":5}', True, "clean", [5], 0),
        (b'{"seq":5}', False, "unended", [5], 0),
        (b'{"seq":5,"v":"a', False, "torn", [], 15),
        (b'{"seq":5,"v":{"seq":6}', False, "torn", [], 22),
        (b'{"seq":5,"v":"{\\"seq\\":6}', False, "torn", [], 25),
        (b'"{\\n \\"seq\\": 5', False, "torn", [], 15),
        ('{"v":"é'.encode()[:-1], False, "torn", [], 7),
        (b"\0" * 9, False, "nul-run", [], 9),
        (b"\0" * 9, True, "nul-run", [], 9),
        (b'{"seq":5}\0\0', False, "nul-run", [5], 2),
        (b'{"seq":5}\0\0', True, "nul-run", [5], 2),
        (b'{"seq":5,\0\0\0\0', False, "nul-run", [], 13),
        (b'{"seq":5,\0\0"}', True, "nul-run", [], 13),
        (b'{"seq":5}{"seq":6}', True, "joined", [5, 6], 0),
        (b'{"seq":5}{"seq":6}', False, "joined", [5, 6], 0),
        (b'{"seq":5}{"seq":6}{"seq":8}', True, "joined", [5, 6, 8], 0),
        (b'{"seq":5}{"seq":6,"v', False, "torn", [5], 11),
        (b'{"seq":5}{"seq":6}{"s', False, "torn", [5, 6], 3),
        (b'{"seq":5,"v{"seq":6}', True, "joined", [6], 11),
        (b'{"seq":5,"v{"seq":6}', False, "joined", [6], 11),
        (b'{"seq":5,"v":"\xc3{"seq":6}', True, "joined", [6], 15),
        (b'{"seq":5,"v"{"seq":6,"w":{"seq":9},"x":"{"}', True, "joined", [6], 12),
        (b'{"seq":5,"v""{\\n\\"seq\\":6}"', True, "joined", [6], 12),
    ],
)
def test_the_end_of_a_journal(
    line: bytes, ended: bool, kind: TailKind, kept: list[int], dropped: int
) -> None:
    tail = classify_tail(line, ended=ended, after=4)
    assert (tail.kind, [each.seq for each in tail.records]) == (kind, kept)
    assert tail.dropped == dropped
    if tail.prefix is not None:
        assert b"".join(each.payload for each in tail.records) in {b"", line[: tail.prefix]}
        assert tail.prefix + tail.dropped == len(line)


@pytest.mark.parametrize(
    ("line", "ended", "kind"),
    [
        (b'{"seq":5,"v":"a', True, "undecodable"),
        (b'{"seq":5}x', True, "joined"),
        (b'{"sxq":5}', True, "no-record"),
        (b"", True, "undecodable"),
        (b'{"seq":5,"v":{"seq":6}', True, "joined"),
        (b'{"seq":5,"v":[1,{"seq":6}', True, "joined"),
        (b'\0\0\0{"seq":6}', True, "nul-run"),
        (b'\0\0\0{"seq":6}', False, "nul-run"),
        (b'{"seq":4}', True, "out-of-order"),
        (b'{"seq":3}', False, "out-of-order"),
        (b'{"seq":5}{"seq":5}', True, "out-of-order"),
    ],
)
def test_an_end_that_is_damaged_is_never_taken_for_torn(
    line: bytes, ended: bool, kind: DamageKind
) -> None:
    with pytest.raises(LineError) as caught:
        classify_tail(line, ended=ended, after=4)
    assert caught.value.kind == kind


def test_every_beginning_of_a_record_is_torn_and_every_record_behind_one_is_found() -> None:
    first = record(5, ',"v":{"seq":6,"w":["{\\"seq\\":7}",{"é":"}"}],"x":"\\\\"}')
    multiline = JournalRecord(seq=5, payload=b'{\n"seq":5,"v":["{",{"seq":6}]}')
    found = unsure = 0
    for whole in (encode_line(first)[:-1], encode_line(multiline)[:-1]):
        for cut in range(1, len(whole)):
            assert classify_tail(whole[:cut], ended=False, after=4).kind == "torn"
            for behind in (record(8, ',"v":{"seq":9}'), multiline_at(8)):
                line = whole[:cut] + encode_line(behind)[:-1]
                tail = tail_of(line)
                if tail == "joined":
                    # What follows may close a torn string just as well, or be a value of it.
                    assert cut == len(whole) - 1 or line[:cut].rstrip()[-1:] in b":[,{"
                    unsure += 1
                else:
                    assert tail == behind
                    found += 1
    assert found > 150
    assert unsure < found / 4


def tail_of(line: bytes) -> JournalRecord | DamageKind:
    try:
        tail = classify_tail(line, ended=True, after=4)
    except LineError as error:
        return error.kind
    assert tail.kind == "joined"
    (found,) = tail.records
    return found


def multiline_at(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{\n"seq":%d}' % seq)


def test_the_last_line_stands_apart() -> None:
    assert last_line(b"") == ([], b"", False, 0)
    assert last_line(b"a\n") == ([], b"a", True, 0)
    assert last_line(b"a\nbc\n") == ([b"a"], b"bc", True, 2)
    assert last_line(b"a\nbc") == ([b"a"], b"bc", False, 2)
    assert last_line(b"a\n\n") == ([b"a"], b"", True, 2)


def test_a_hostile_line_ends_in_time() -> None:
    with pytest.raises(LineError):
        decode_line(b'{"a":' * 200_000)
    with pytest.raises(LineError):
        decode_line(b'["' * 200_000)

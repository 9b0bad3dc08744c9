"""Ids at the front door: hostile ones are refused in every position, odd ones are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.checks import (
    MAX_TTL_MS,
    check_after_seq,
    check_blob,
    check_epoch,
    check_lease,
    check_limit,
    check_owner,
    check_ref,
    check_run_id,
    check_ttl_ms,
    run_of_ref,
)
from rulvar.core.errors import ConfigError
from rulvar.core.ids import SystemIds
from rulvar.core.records import Lease
from rulvar.core.testing import SeededIds
from rulvar.core.values import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = ["", ".", "..", "a\x00b", "a\nb", "\x7f", "\x85", "a\ud800", "x" * 201]
NOT_TEXT = [None, 1, b"run", ["run"], True]
ODD = [
    "a",
    "x" * 200,
    "😀" * 200,
    "\u2028" * 200,
    "...",
    " ",
    "CON",
    "nul.txt",
    "Run",
    "run",
    "ru\u0301n",
    "r\u00fan",
    "-rf",
    "%2e%2e",
    "a\\b",
    "'; DROP TABLE entries; --",
    "\u202e",
    "\u2028",
    "\ufeff",
    "a:b",
    "*",
]


@pytest.mark.parametrize("text", [*HOSTILE, "a/b", "/", *NOT_TEXT])
def test_a_hostile_run_id_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="run id"):
        check_run_id(text)


@pytest.mark.parametrize("text", ODD)
def test_an_odd_run_id_is_taken_as_it_is(text: str) -> None:
    assert check_run_id(text) is text


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["{}/name", "run/{}", "run/{}/name", "run/name/{}"])
def test_a_hostile_segment_is_refused_anywhere_in_a_ref(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match="ref"):
        check_ref(place.format(text))


@pytest.mark.parametrize(
    "ref", ["run", "", "run/", "/name", "run//name", "a/" * 500 + "b", *NOT_TEXT]
)
def test_what_is_no_ref_is_refused(ref: object) -> None:
    with pytest.raises(ConfigError, match="ref"):
        check_ref(ref)


def test_the_longest_ref_is_taken_and_names_its_run() -> None:
    ref = "a/" * 499 + "bb"
    assert len(ref) == 1000
    assert check_ref(ref) is ref
    assert run_of_ref("run/a/b") == "run"


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=30))
def test_a_ref_is_taken_exactly_when_each_segment_is(text: str) -> None:
    def taken(check: Callable[[str], str], value: str) -> bool:
        try:
            check(value)
        except ConfigError:
            return False
        return True

    segments = text.split("/")
    expected = len(segments) > 1 and all(taken(check_run_id, part) for part in segments)
    assert taken(check_ref, text) == expected


@pytest.mark.parametrize("owner", ["", "a\x00", "\ud800", "x" * 201, *NOT_TEXT])
def test_a_hostile_owner_is_refused(owner: object) -> None:
    with pytest.raises(ConfigError, match="owner"):
        check_owner(owner)


def test_an_owner_may_hold_a_slash() -> None:
    assert check_owner("host/1234/..") == "host/1234/.."


@pytest.mark.parametrize(
    "lease",
    [
        None,
        "lease",
        ("r", "o", 1),
        Lease(run_id="a/b", owner="o", epoch=1),
        Lease(run_id="r", owner="", epoch=1),
        Lease(run_id="r", owner="o", epoch=-1),
        Lease(run_id="r", owner="o", epoch=True),
        Lease(run_id="r", owner="o", epoch=MAX_INTEGER + 1),
        Lease(run_id="r", owner="o", epoch=1.0),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_lease_is_refused(lease: object) -> None:
    with pytest.raises(ConfigError):
        check_lease(lease)


@pytest.mark.parametrize(
    ("check", "lowest", "highest"),
    [
        (check_epoch, 0, MAX_INTEGER),
        (check_limit, 1, MAX_INTEGER),
        (check_after_seq, -1, MAX_INTEGER),
        (check_ttl_ms, 1, MAX_TTL_MS),
    ],
)
def test_numbers_are_integers_within_bounds(
    check: Callable[[object], int], lowest: int, highest: int
) -> None:
    assert (check(lowest), check(highest)) == (lowest, highest)
    for value in (lowest - 1, highest + 1, True, 1.5, "1", None):
        with pytest.raises(ConfigError):
            check(value)


def test_a_blob_is_bytes() -> None:
    assert check_blob(b"") == b""
    largest = bytes(256 * 1024 * 1024)
    assert check_blob(largest) is largest
    with pytest.raises(ConfigError, match="split it"):
        check_blob(bytes(len(largest) + 1))
    for blob in ("text", bytearray(b"x"), memoryview(b"x"), None):
        with pytest.raises(ConfigError):
            check_blob(blob)


def test_a_refusal_shows_the_value_but_never_all_of_a_long_one() -> None:
    with pytest.raises(ConfigError) as caught:
        check_run_id("x" * 100_000)
    assert len(str(caught.value)) < 300


def test_seeded_ids_come_out_the_same_again() -> None:
    def some(ids: SeededIds) -> list[object]:
        return [ids.token(), ids.uuid(), ids.random(), ids.token()]

    assert some(SeededIds(7)) == some(SeededIds(7))
    assert some(SeededIds(7)) != some(SeededIds(8))


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(0)])
def test_an_id_source_mints_tokens_uuids_and_numbers(ids: SystemIds | SeededIds) -> None:
    tokens = {ids.token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(t) == 32 and set(t) <= set("0123456789abcdef") for t in tokens)
    assert ids.uuid().version == 4
    assert 0 <= ids.random() < 1

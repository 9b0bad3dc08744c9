"""Values: what crosses the journal, what is refused with its place, and their hashes."""

from __future__ import annotations

import json
import math

import pytest

from rulvar.core import wire
from rulvar.core.errors import ConfigError
from rulvar.core.values import check_value, content_hash, normalize

# --- values -------------------------------------------------------------------------------

LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$"),
        ({"a": [1, math.inf]}, "$.a[1]"),
        ({"files": [{"size": 2**53}]}, "$.files[0].size"),
        ([-(2**53)], "$[0]"),
        ([10**30], "$[0]"),
        ("\ud800", "$"),
        ({"\ud800": 1}, "$"),
        ({1: 2}, "$"),
        ([{"a": b"bytes"}], "$[0].a"),
        ({"a": {1, 2}}, "$.a"),
        ([object()], "$[0]"),
    ],
)
def test_what_is_no_value_is_refused_with_its_place(value: object, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_value(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


def test_a_cycle_is_refused_and_not_followed_for_ever() -> None:
    with pytest.raises(ConfigError, match="nested"):
        check_value(LOOP)


def test_a_body_receives_what_a_replay_will_see() -> None:
    assert normalize({"a": (1, "\x00", -0.0), "b": 2**53 - 1}) == {
        "a": [1, "\x00", -0.0],
        "b": 2**53 - 1,
    }


def test_hashes_are_over_the_canonical_form() -> None:
    assert content_hash({"b": 1.0, "a": "é"}) == content_hash({"a": "\u00e9", "b": 1})
    assert content_hash([1, 2]) != content_hash([2, 1])
    assert content_hash({}).startswith("sha256:44136fa355b3678a")


@pytest.mark.parametrize("behind", ["", "\n", " \t\r\n"])
def test_a_text_is_read_once_with_white_space_behind_it_too(behind: str) -> None:
    read: list[object] = []
    decoder = json.JSONDecoder(object_pairs_hook=read.append)
    wire._decode('{"seq":0}' + behind, decoder)
    assert read == [[("seq", 0)]]

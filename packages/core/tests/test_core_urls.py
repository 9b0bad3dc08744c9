"""Store URLs: what they mean, what is refused, and that no message repeats a credential."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from rulvar.core.errors import ConfigError
from rulvar.core.urls import StoreURL


@pytest.mark.parametrize(
    ("text", "scheme", "path", "query"),
    [
        ("sqlite:///runs.db", "sqlite", "runs.db", {}),
        ("sqlite:////var/runs.db", "sqlite", "/var/runs.db", {}),
        ("sqlite://", "sqlite", "", {}),
        ("sqlite:///", "sqlite", "", {}),
        ("sqlite:///:memory:", "sqlite", ":memory:", {}),
        ("SQLite:///Runs.db", "sqlite", "Runs.db", {}),
        ("sqlite:///a/b/../c.db", "sqlite", "a/b/../c.db", {}),
        ("sqlite:///C:/data/runs.db", "sqlite", "C:/data/runs.db", {}),
        ("sqlite:///C:\\data\\runs.db", "sqlite", "C:\\data\\runs.db", {}),
        ("sqlite:///a%20b%3F%23.db", "sqlite", "a b?#.db", {}),
        ("sqlite:///h%C3%A4.db", "sqlite", "hä.db", {}),
        ("sqlite:///a+b#c.db", "sqlite", "a+b#c.db", {}),
        ("sqlite:///r.db?lease_ttl_ms=30000", "sqlite", "r.db", {"lease_ttl_ms": "30000"}),
        ("sqlite:///r.db?", "sqlite", "r.db", {}),
        ("x:///r?a=1&&b=x%3Dy&c=", "x", "r", {"a": "1", "b": "x=y", "c": ""}),
        ("x:///r?a=b+c", "x", "r", {"a": "b c"}),
        ("acme+tls://host:1/name", "acme+tls", "name", {}),
    ],
)
def test_a_url_is_read(text: str, scheme: str, path: str, query: dict[str, str]) -> None:
    url = StoreURL.parse(text)
    assert (url.scheme, url.path, url.query) == (scheme, path, query)
    assert pickle.loads(pickle.dumps(url)) == url
    assert hash(url) == hash(StoreURL.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "runs.db",
        "sqlite",
        "sqlite:runs.db",
        "sqlite:/runs.db",
        "/var/runs.db",
        "://x",
        "1a:///x",
        "a b:///x",
        "sqlite:///r?a=1&a=1",
        "sqlite:///r?a",
        "sqlite:///r?=1",
        "sqlite:///100%.db",
        "sqlite:///a%zz",
        "sqlite:///%ff.db",
        "sqlite:///a%00b",
        "sqlite:///a\udcff.db",
        "sqlite:///r?a=\ud800",
        "sqlite:///r?a=%ff",
        "C:\\runs.db",
    ],
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        StoreURL.parse(text)


def test_a_url_must_be_text() -> None:
    with pytest.raises(ConfigError, match=r"Path$"):
        StoreURL.parse(Path("runs.db"))  # type: ignore[arg-type]


def test_paths_are_relative_absolute_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path(os.getcwd())  # noqa: PTH109 - as os.path.abspath sees it
    assert StoreURL.parse("sqlite:///a/../runs.db").local_path() == here / "runs.db"
    assert StoreURL.parse(f"sqlite:///{here}/runs.db").local_path() == here / "runs.db"
    for text in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        assert StoreURL.parse(text).in_memory
        assert StoreURL.parse(text).local_path() is None
        assert str(StoreURL.parse(text)) == "sqlite://"
    shown = str(StoreURL.parse("sqlite:///runs.db?key=hidden"))
    assert shown == f"sqlite:///{here / 'runs.db'}"


def test_a_relative_path_needs_a_folder_to_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the current folder, which is not there any more"):
        StoreURL.parse("sqlite:///runs.db").local_path()
    assert StoreURL.parse("sqlite:////var/runs.db").local_path() == Path("/var/runs.db")


def test_a_link_in_the_path_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    url = StoreURL.parse(f"sqlite:///{tmp_path}/link/runs.db")
    assert url.local_path() == tmp_path / "link" / "runs.db"


def test_a_host_before_a_local_path_is_one_slash_short() -> None:
    url = StoreURL.parse("sqlite://runs.db")
    assert not url.in_memory
    with pytest.raises(ConfigError, match="sqlite:///<path>"):
        url.local_path()


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"acme://user:{SECRET}@host/db?token={SECRET}",
        f"acme://{SECRET}@host/db",
        f"acme://user:p@{SECRET}@host/db",
    ],
)
def test_a_url_shows_no_credential(text: str) -> None:
    url = StoreURL.parse(text)
    assert SECRET in url.authority
    for shown in (str(url), repr(url), f"{url}"):
        assert SECRET not in shown
    assert str(url) == "acme://***@host/db"
    with pytest.raises(ConfigError) as caught:
        url.local_path()
    assert SECRET not in str(caught.value)


def test_an_unknown_option_is_refused_without_its_value() -> None:
    with pytest.raises(ConfigError) as caught, parse(f"token={SECRET}").options():
        pass
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"acme:user:{SECRET}@host/db",
        f"user:{SECRET}@host",
        f"acme:/x?token={SECRET}",
        f"acme://u:p?{SECRET}@host/db",
        f"acme://u:{SECRET}@host/%",
        f"acme://u:{SECRET}@host/db?a",
        f"acme://u:{SECRET}@host/db?a=%zz",
    ],
)
def test_a_refusal_repeats_no_credential(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreURL.parse(text)
    assert SECRET not in str(caught.value)


# --- options --------------------------------------------------------------------------------


def parse(query: str) -> StoreURL:
    return StoreURL.parse(f"sqlite:////var/runs.db?{query}")


def test_options_are_taken_with_their_defaults() -> None:
    url = parse("ttl=5&mode=full&wal=off&note=a%26b")
    with url.options() as options:
        assert options.take_int("ttl", 1, lowest=1, highest=5) == 5
        assert options.take_int("absent", 7) == 7
        assert options.take_choice("mode", ("full", "normal"), "normal") == "full"
        assert options.take_choice("other", ("full", "normal"), "normal") == "normal"
        assert options.take_bool("wal", True) is False
        assert options.take_bool("fast", False) is False
        assert options.take_text("note") == "a&b"
        assert options.take_text("none") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("1", True),
        ("YES", True),
        ("on", True),
        ("false", False),
        ("0", False),
        ("No", False),
        ("off", False),
    ],
)
def test_a_flag_is_written_in_a_few_ways(text: str, value: object) -> None:
    assert parse(f"flag={text}").options().take_bool("flag", not value) is value


@pytest.mark.parametrize("text", ["x", "", "1.0", "+1", "1e3", "0x10", "٣", " 1", "9" * 30, "1_0"])
def test_an_integer_is_written_in_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="'ttl' must be an integer"):
        parse(f"ttl={text}").options().take_int("ttl", 1)


@pytest.mark.parametrize(
    ("text", "bound"), [("0", "at least 1"), ("6", "at most 5"), ("-3", "1 and")]
)
def test_a_bound_is_said(text: str, bound: str) -> None:
    with pytest.raises(ConfigError, match=bound):
        parse(f"ttl={text}").options().take_int("ttl", 1, lowest=1, highest=5)


def test_a_choice_and_a_flag_outside_their_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of full, normal, not 'half'"):
        parse("mode=half").options().take_choice("mode", ("full", "normal"), "full")
    with pytest.raises(ConfigError, match="true or false"):
        parse("flag=maybe").options().take_bool("flag", True)


def test_an_unknown_key_is_refused_and_the_known_ones_are_listed() -> None:
    options = parse("lease_ttl=1&x=2").options()
    options.take_int("lease_ttl_ms", 1)
    options.take_choice("durability", ("full",), "full")
    with pytest.raises(ConfigError) as caught:
        options.refuse_unknown()
    message = str(caught.value)
    assert "'lease_ttl', 'x'" in message
    assert "did you mean 'lease_ttl_ms'?" in message
    assert "known: durability, lease_ttl_ms" in message
    assert message.startswith("sqlite:////")
    assert "runs.db" in message


def test_an_error_inside_is_not_hidden_by_what_is_left_over() -> None:
    with pytest.raises(LookupError), parse("x=2").options():
        raise LookupError

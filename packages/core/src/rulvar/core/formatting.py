"""How a message spells a moment, a number of things, and a command that can be pasted.

And how it shows text that came out of a store: nothing in it may move a cursor, turn the
reading direction, hide, or begin a line of its own.
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime

__all__ = [
    "command_line",
    "counted",
    "format_time",
    "plain",
    "plain_json",
    "plain_lines",
    "with_article",
]

_UNSHOWN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0, DEL and C1, without tab and line feed
    r"\ud800-\udfff"  # lone surrogates
    r"\u2028\u2029"  # line and paragraph separators
    # What formats and is not seen: bidi controls, zero widths, soft hyphen, tags.
    r"\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Letters and marks that are drawn as nothing.
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
)
_VOWELS = frozenset("aeiou")
_ANY = re.compile(rf"[\t\n{_UNSHOWN}]")
_BUT_LINES = re.compile(f"[{_UNSHOWN}]")


def plain(text: object) -> str:
    r"""Return ``text`` on one line; what is not seen becomes escapes (``\x1b``, ``\u202e``)."""
    return _ANY.sub(_escape, str(text))


def plain_lines(text: str) -> str:
    """Return ``text`` as `plain` does, its line breaks and tabs kept."""
    return text if _is_shown(text) else _BUT_LINES.sub(_escape, text)


def plain_json(text: str) -> str:
    """Return JSON text that means the same, with whatever is not seen as JSON's own escapes."""
    return text if _is_shown(text) else _BUT_LINES.sub(_escape_in_json, text)


def _is_shown(text: str) -> bool:
    """Whether all of it is seen, answered at once for plain ASCII: most of what is printed."""
    return text.isascii() and text.replace("\n", "").replace("\t", "").isprintable()


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escape_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def command_line(command: str, *arguments: str, options: str = "") -> str:
    """Return ``rulvar COMMAND ARGUMENTS OPTIONS`` as a POSIX shell takes it.

    ``command`` and ``options`` are ours and go out as they are. An argument is quoted where
    the shell would read more into it, and kept from being read as an option.
    """
    quoted = [shlex.quote(each) for each in arguments]
    if any(each.startswith("-") for each in arguments):
        words = ["rulvar", command, options, "--", *quoted]
    else:
        words = ["rulvar", command, *quoted, options]
    return " ".join(word for word in words if word)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, ``1 run`` or ``2 runs``; ``plural`` is for odd ones."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an", as it is spelt: ``a step``, ``an external``, ``an 'ok'``."""
    first = noun.lstrip("'\"")[:1].lower()
    return f"{'an' if first in _VOWELS else 'a'} {noun}"


def format_time(unix_ms: int) -> str:
    """Return Unix milliseconds as ISO 8601 UTC with milliseconds and a ``Z``."""
    whole = datetime.fromtimestamp(unix_ms // 1000, tz=UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{unix_ms % 1000:03d}Z"

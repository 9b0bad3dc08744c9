"""Names on disk: no two run ids or refs share a file name, on any file system.

A name is spelled with ``a-z 0-9 _ - .`` and percent escapes in lower-case hexadecimal; all
else is escaped, the percent sign and the upper-case letters too. So two ids that differ in
any byte differ in their names where case is folded or Unicode normalised; no name is a
device of Windows, begins with a dot or a dash, or ends in a dot; and none holds a separator.

An id whose name would be longer than `LONGEST` goes by ``<its beginning>%-<sha256>``, and
the store keeps what it stands for in a separate file (see `rulvar.stores.file.layout`).
``%-`` is not an escape, so the two forms never meet.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["LONGEST", "decode_name", "digest_of", "encode_name", "is_digest_name"]

LONGEST = 100
"""How many characters a name may have, so that it fits with its suffix under every limit."""

_BEGINNING = 32
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_ESCAPES = tuple(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in range(256))
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)")
_PLAIN = re.compile(r"(?:[a-z0-9_.-]|%[0-9a-f]{2})+\Z")
_ITSELF = re.compile(
    rf"(?!{_RESERVED.pattern})[a-z0-9_](?:[a-z0-9_.-]{{0,{LONGEST - 2}}}[a-z0-9_-])?\Z"
)
_CUT_ESCAPE = re.compile(r"%[0-9a-f]?\Z")
_DIGEST = re.compile(r"%-([0-9a-f]{64})\Z")


def _spell(text: str) -> str:
    name = "".join([_ESCAPES[byte] for byte in text.encode("utf-8")])
    if name[0] in ".-" or _RESERVED.match(name):
        name = f"%{ord(name[0]):02x}{name[1:]}"
    return f"{name[:-1]}%2e" if name[-1] == "." else name


def encode_name(text: str) -> str:
    """Return the file name of an id: the same for the same id, and for no other."""
    name = _spell(text)
    if len(name) <= LONGEST:
        return name
    beginning = _CUT_ESCAPE.sub("", name[:_BEGINNING])
    return f"{beginning}%-{digest_of(text)}"


def digest_of(text: str) -> str:
    """Return the SHA-256 that stands for an id whose name is too long."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def is_digest_name(name: str) -> str | None:
    """Return the SHA-256 in a name of the long form, or None for any other."""
    found = _DIGEST.search(name)
    return None if found is None else found[1]


def decode_name(name: str) -> str | None:
    """Return the id that a plain name stands for, or None for what this store never wrote."""
    if _ITSELF.match(name):
        return name  # most ids are spelled as they are, and a listing decodes very many
    if not _PLAIN.match(name):
        return None
    parts = name.split("%")
    raw = parts[0].encode("ascii")
    for part in parts[1:]:
        raw += bytes.fromhex(part[:2]) + part[2:].encode("ascii")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if encode_name(text) == name else None

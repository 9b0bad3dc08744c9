"""Where code comes from: the kit, the standard library, or somewhere that a store may be."""

from __future__ import annotations

import os
import sys
import sysconfig

__all__ = ["in_kit", "in_stdlib", "short_name"]

_KIT = os.path.dirname(str(sys.modules["rulvar.conformance"].__file__)) + os.sep  # noqa: PTH120
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple(
    os.path.normpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")
)


def in_kit(filename: str) -> bool:
    """Whether a file of code belongs to this package."""
    return filename.startswith(_KIT)


def in_stdlib(filename: str) -> bool:
    """Whether a file of code belongs to Python itself."""
    # site-packages lies inside the standard library's folder, and stores lie in it.
    return filename.startswith(_STDLIB) and not filename.startswith(_INSTALLED)


def short_name(filename: str) -> str:
    """Return the name of a file of the kit from its package on."""
    return filename.removeprefix(_KIT)

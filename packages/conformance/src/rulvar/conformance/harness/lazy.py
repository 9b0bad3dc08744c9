"""Names of a package that are imported at first use.

pytest and the command line import the packages of this distribution wherever it is installed,
so those must not bring the engine and every check with them.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` maps each public name to the module of the package that has it.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> object:
        if name not in homes:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value: object = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        names[name] = value
        return value

    return get, lambda: sorted({*names, *homes})

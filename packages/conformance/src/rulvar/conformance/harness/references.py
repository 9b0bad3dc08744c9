"""Functions by name, so that another process can find them.

Pickle finds a function by its module's name alone. A module that was loaded from a file (a
test module, a script) has a name that nobody else can import; so a reference keeps the file
too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Reference"]

_SCRIPT = "rulvar_conformance_script"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a function is: module, name inside it, and the file that the module came from."""

    module: str
    name: str
    file: str | None

    @classmethod
    def to(cls, function: Callable[..., object], /) -> Self:
        """Return a reference to a function at a module's top level.

        Raises `ConfigError` for a lambda, a nested function and one that was typed in.
        """
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
            message = f"{function!r} has no name that another process can find it by"
            raise ConfigError(message)
        file = getattr(sys.modules.get(module), "__file__", None)
        if module == "__main__":
            if file is None or not Path(file).is_file():
                message = f"{name} stands in no file: move it into a module"
                raise ConfigError(message)
            # Over there the script is a module like any other, so its main part does not run.
            return cls(_SCRIPT, name, str(Path(file).resolve()))
        return cls(module, name, file)

    def resolve(self) -> Callable[..., object]:
        """Import the module, from its file if need be, and return the function."""
        found: object = self._module()
        for part in self.name.split("."):
            found = getattr(found, part)
        if not callable(found):
            message = f"{self.module}.{self.name} is not a function"
            raise ConfigError(message)
        return found

    def _module(self) -> object:
        try:
            return importlib.import_module(self.module)
        except ImportError:
            if self.file is None:
                raise
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        if spec is None or spec.loader is None:
            message = f"{self.file} cannot be loaded as a module"
            raise ConfigError(message)
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module

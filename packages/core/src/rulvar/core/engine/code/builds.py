"""The default name of a build: a hash of the sources that define a workflow.

The sources of the outermost package that holds the body's module, or those of the module
alone. They are read once, when somebody first asks, through the import system, so that a
package inside an archive counts as one in a folder. Where there are none to be read (a frozen
application, a notebook), the body's compiled code stands for them. Never raises.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.resources.abc import Traversable
    from types import CodeType, ModuleType

__all__ = ["build_of"]

_MOST_FILES = 5_000
_MOST_BYTES = 64 * 1024 * 1024
"""Of a larger package, the rest counts by its names alone."""

_known: dict[str, str] = {}
_lock = threading.Lock()


def build_of(body: Callable[..., object], /) -> str:
    """Return the name of the build that a body belongs to: the same text, the same name."""
    function = inspect.unwrap(body)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    home = None if module is None or _is_typed_in(function, module) else _home(module)
    if home is None:
        return _digest_of(function)
    name, package = home
    with _lock:
        known = _known.get(name)
        if known is None:
            known = _hash_of(package) or ""
            _known[name] = known
    return known or _digest_of(function)


def _is_typed_in(function: object, module: ModuleType) -> bool:
    """Whether it comes from a prompt or a cell of a notebook: no file of a program has it."""
    if module.__name__ != "__main__":
        return False
    file = getattr(module, "__file__", None)
    code = getattr(function, "__code__", None)
    return not file or (code is not None and Path(code.co_filename).absolute() != Path(file))


def _home(module: ModuleType) -> tuple[str, ModuleType]:
    """Return the outermost regular package around a module, or the module itself."""
    spec = getattr(module, "__spec__", None)  # of a program that was started with -m
    runtime = (module.__name__ if spec is None else spec.name).split(".")
    for length in range(1, len(runtime)):
        name = ".".join(runtime[:length])
        package = sys.modules.get(name)
        # A namespace package has no file: it belongs to several distributions.
        if package is not None and getattr(package, "__file__", None):
            return name, package
    return module.__name__, module


def _hash_of(module: ModuleType) -> str | None:
    try:
        found = hashlib.sha256()
        count = 0
        for name, text in _sources(module):
            count += 1
            found.update(f"{len(name)}:{name}{len(text)}:".encode("utf-8", "surrogatepass"))
            found.update(text)
    except Exception:  # noqa: BLE001 - loaders of any kind: what cannot be read has no sources
        return None
    return f"sha256:{found.hexdigest()}" if count else None


def _sources(module: ModuleType) -> Iterator[tuple[str, bytes]]:
    if not hasattr(module, "__path__"):
        source = inspect.getsource(module)
        yield module.__name__, source.encode("utf-8", "surrogatepass")
        return
    left = _MOST_BYTES
    for number, (name, file) in enumerate(_files(files(module), "")):
        text = file.read_bytes() if number < _MOST_FILES and left > 0 else b""
        left -= len(text)
        yield name, text


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{path}{each.name}"
        if each.is_dir():
            if each.name != "__pycache__":
                yield from _files(each, f"{name}/")
        elif each.name.endswith(".py"):
            yield name, each


def _digest_of(function: object) -> str:
    code = getattr(function, "__code__", None)
    facts = _facts(code) if code is not None else type(function).__qualname__
    return f"sha256:{hashlib.sha256(facts.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _facts(code: CodeType) -> str:
    """Return what a compiled function does, spelled the same in every process."""
    constants = [
        _facts(each)
        if inspect.iscode(each)
        else repr(sorted(map(repr, each)))
        if isinstance(each, frozenset)
        else repr(each)
        for each in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))

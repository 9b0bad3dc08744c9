"""Loading workflows from the user's own modules: ``MODULE`` or ``MODULE:ATTR``.

``MODULE`` takes every `Workflow` that the module holds; ``MODULE:ATTR`` one workflow, or an
iterable of them. Several may be named: their workflows are taken together. The folder that the
setting was read from goes first on ``sys.path``.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn, cast

from rulvar.core import Workflow
from rulvar.core.errors import ConfigError
from rulvar.core.foreign import ForeignError, calling_foreign_code

if TYPE_CHECKING:
    from types import ModuleType

    from rulvar.cli.config import Setting

__all__ = ["load_workflows"]


def load_workflows(apps: Iterable[Setting]) -> tuple[Workflow, ...]:
    """Return the workflows that the apps name: app by app, in each module's own order.

    Raises `ConfigError` when a module does not import, has no such attribute, or holds no
    workflow; and when two workflows go by one name.
    """
    found: dict[str, tuple[Workflow, Setting]] = {}
    for app in apps:
        for workflow in _load(app):
            known, where = found.setdefault(workflow.name, (workflow, app))
            if known is not workflow:
                places = " and ".join(dict.fromkeys([repr(where.value), repr(app.value)]))
                _refuse(f"app {places}: two workflows named {workflow.name!r}: rename one of them")
    return tuple(workflow for workflow, _ in found.values())


def _load(app: Setting) -> tuple[Workflow, ...]:
    module_name, colon, attribute = app.value.partition(":")
    if not module_name or module_name.startswith(".") or (colon and not attribute):
        _refuse(f"app {app.value!r} must be MODULE or MODULE:ATTR, as in workflows:count")
    module = _import(module_name, app)
    found = _take(module, attribute, app) if attribute else _workflows_of(vars(module).values())
    if not found:
        _refuse(f"app {app.value!r} holds no workflow: decorate an async function with @workflow")
    return found


def _import(module_name: str, app: Setting) -> ModuleType:
    folder = str(app.folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with calling_foreign_code():
            return importlib.import_module(module_name)
    except ForeignError as failed:
        # Whatever the user's module raises is about that module: name the line, keep the cause.
        error = failed.cause
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            message = (
                f"app {app.value!r}: no module {missing!r} in {folder} or in this environment: "
                "name a module that Python can import from there"
            )
            raise ConfigError(message) from error
        raise _broken(app, error) from error


def _broken(app: Setting, error: BaseException) -> ConfigError:
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames and not frames[-1].filename.startswith("<frozen importlib"):
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})"
    message = (
        f"app {app.value!r} cannot be imported: {type(error).__name__}: {error}{where}: correct "
        "it; --debug shows the traceback"
    )
    return ConfigError(message)


def _take(module: ModuleType, attribute: str, app: Setting) -> tuple[Workflow, ...]:
    value: object = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            _refuse(f"app {app.value!r}: {module.__name__} has no attribute {attribute!r}")
        value = cast("object", getattr(value, name))
    if isinstance(value, Workflow):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        items = list(cast("Iterable[object]", value))
        others = [item for item in items if not isinstance(item, Workflow)]
        if not others:
            return _workflows_of(items)
        value = others[0]
    return _refuse(
        f"app {app.value!r} holds {_shown(value)} where a Workflow or an iterable of Workflows "
        "was expected: decorate the async function with @workflow"
    )


def _shown(value: object) -> str:
    name = getattr(value, "__name__", None)
    kind = type(value).__name__
    return f"the {kind} {name!r}" if isinstance(name, str) else f"a value of type {kind}"


def _workflows_of(values: Iterable[object]) -> tuple[Workflow, ...]:
    found: list[Workflow] = []
    for value in values:
        # One workflow under two names of the module is still one.
        if isinstance(value, Workflow) and not any(value is known for known in found):
            found.append(value)
    return tuple(found)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)

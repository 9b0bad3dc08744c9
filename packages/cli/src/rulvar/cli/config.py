"""Settings for the store and the workflows: flag, environment, pyproject.toml.

In that order of precedence. Flag and environment are read by click before a command's body
runs; this module adds the third place, and the error for when none of them has it.

What pyproject.toml says is read as if it were typed in that file's own folder: the module
is looked up there, and a relative path in the store's URL starts there. Otherwise the same
project would open another, empty database in each of its folders. Flag and environment
start from the current folder, as everywhere else.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from rulvar.core.errors import ConfigError

__all__ = ["ENVIRONMENT", "Setting", "find_project", "read_setting", "read_settings"]

SettingName = Literal["store", "app"]

ENVIRONMENT: dict[SettingName, str] = {"store": "RULVAR_STORE", "app": "RULVAR_APP"}
_EXAMPLES: dict[SettingName, tuple[str, str]] = {
    "store": ("URL", "sqlite:///runs.db"),
    "app": ("MODULE[:ATTR]", "workflows:count"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value and the folder that relative paths in it start from."""

    value: str
    folder: Path


def read_setting(name: SettingName, given: str | None) -> Setting:
    """Return the setting: ``given`` (flag or environment), or else what pyproject.toml says.

    Raises `ConfigError` naming all three places when none has it, and for a pyproject.toml
    that cannot be read.
    """
    folder = _current_folder()
    if given:
        return Setting(given, folder)
    found = find_project(folder)
    if found is not None and name in found[1]:
        return Setting(found[1][name], found[0].parent)
    metavar, example = _EXAMPLES[name]
    message = (
        f"no {name} given: pass --{name} {metavar}, set {ENVIRONMENT[name]}, or put "
        f'{name} = "{example}" under [tool.rulvar] in pyproject.toml'
    )
    raise ConfigError(message)


def read_settings(name: SettingName, given: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return a setting that may be given several times, each once. Raises as `read_setting`."""
    if not any(given):
        return (read_setting(name, None),)
    return tuple(read_setting(name, each) for each in dict.fromkeys(given) if each)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        message = f"the current folder no longer exists ({error.strerror}): change to another"
        raise ConfigError(message) from error


def find_project(folder: Path) -> tuple[Path, dict[SettingName, str]] | None:
    """Return the nearest pyproject.toml with a ``[tool.rulvar]`` table, and that table.

    Looks in ``folder``, then upwards. Raises `ConfigError` for a file on the way that is not valid
    TOML, and for a table with an unknown name or a value that is not a string.
    """
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        table = _read_table(path)
        if table is not None:
            return path, table
    return None


def _read_table(path: Path) -> dict[SettingName, str] | None:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{path} cannot be read: {error}: correct it, or pass the setting as a flag"
        raise ConfigError(message) from error
    tool: object = document.get("tool")
    table = cast("object", tool.get("rulvar")) if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        message = f"{path}: tool.rulvar must be a table: write [tool.rulvar]"
        raise ConfigError(message)
    for name, value in table.items():
        if name not in ENVIRONMENT:
            known = ", ".join(ENVIRONMENT)
            message = f"{path}: [tool.rulvar] has no setting {name!r}: it takes {known}"
            raise ConfigError(message)
        if not isinstance(value, str) or not value:
            message = f"{path}: [tool.rulvar] {name} must be a string, not {value!r}"
            raise ConfigError(message)
    return cast("dict[SettingName, str]", table)

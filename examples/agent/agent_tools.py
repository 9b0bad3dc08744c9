"""The agent's tools: a file search, a line counter and a calculator, over a real directory."""

from __future__ import annotations

import ast
import operator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_tool"]

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def find_files(directory: Path, pattern: str) -> list[str]:
    found = directory.glob(pattern)
    return sorted(path.relative_to(directory).as_posix() for path in found if path.is_file())


def count_lines(directory: Path, file: str) -> int:
    path = (directory / file).resolve()
    if not path.is_relative_to(directory.resolve()):
        message = f"{file} lies outside of the directory"
        raise ValueError(message)  # a model asks for anything
    return path.read_bytes().count(b"\n")


def calculate(_directory: Path, expression: str) -> float:
    def value(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Constant(int() | float() as number):
                return number
            case _:
                message = f"{expression!r} is no sum, difference, product or quotient of numbers"
                raise ValueError(message)

    return value(ast.parse(expression, mode="eval").body)


_TOOLS: dict[str, Callable[[Path, str], object]] = {
    "find_files": find_files,
    "count_lines": count_lines,
    "calculate": calculate,
}


def run_tool(directory: str, name: str, argument: str) -> object:
    """Run one tool; what goes wrong in it is an answer, too, which the model can react to."""
    if name not in _TOOLS:
        return {"error": f"there is no tool {name!r}"}
    try:
        return _TOOLS[name](Path(directory), argument)
    except (OSError, ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}

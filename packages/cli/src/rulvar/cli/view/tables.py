"""Tables and what stands below one another, as lines of text: made at once for any number of rows.

In a pipe a row stays one line. On a terminal a table that is wider than it folds the cells of
its widest columns, at spaces where there are any. Cells are `plain`; colours are put around
them here, and nothing else of what is printed has any.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import le
from typing import TYPE_CHECKING, TypeAlias

from rulvar.core.formatting import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Columns", "Renderable", "Stack", "columns", "lines_of", "stacked"]

_GAP = "  "
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_BOLD = "1"
_FIRST_WIDE = "\u0300"
"""Below this code point every character that is shown takes one place."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A table: its titles, which columns stand to the right, its rows, and the cells' colours.

    One that continues another has ``least``, the widths that the rows before it took.
    """

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: Mapping[str, str]
    least: tuple[int, ...] | None = None

    def widths(self) -> tuple[int, ...]:
        """Return how wide each column is, its title and the rows before it counted."""
        own = [max(map(_places, column)) for column in zip(self.titles, *self.rows, strict=True)]
        return tuple(own if self.least is None else map(max, own, self.least))


@dataclass(frozen=True, slots=True)
class Stack:
    """Parts that stand one below the other."""

    parts: tuple[Renderable, ...]


Renderable: TypeAlias = "str | Columns | Stack"


def columns(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    styles: Mapping[str, str] | None = None,
    before: Columns | None = None,
) -> Columns:
    """Return a table; a title that ends in ``>`` aligns its column to the right.

    ``styles`` gives a cell's colour by its text (a status, a verdict). ``before`` is the table
    of the same columns that these rows continue: the titles stand there.
    """
    return Columns(
        titles=tuple(title.rstrip(">") for title in titles),
        right=tuple(title.endswith(">") for title in titles),
        rows=tuple(tuple(plain("" if cell is None else cell) for cell in row) for row in rows),
        styles=styles or {},
        least=None if before is None else before.widths(),
    )


def stacked(parts: Sequence[Renderable]) -> Stack:
    """Return the parts one below the other; a string keeps its lines."""
    return Stack(tuple(parts))


def lines_of(part: Renderable, *, width: int | None, coloured: bool) -> Iterator[str]:
    """Yield the lines of a part, at most ``width`` places wide where it can be folded."""
    if isinstance(part, str):
        yield from plain_lines(part).split("\n")
    elif isinstance(part, Stack):
        for each in part.parts:
            yield from lines_of(each, width=width, coloured=coloured)
    else:
        yield from _lines_of_table(part, width, coloured=coloured)


def _lines_of_table(table: Columns, width: int | None, *, coloured: bool) -> Iterator[str]:
    widths = list(table.widths())
    titles = () if table.least is not None else (table.titles,)
    if width is not None:
        _narrow(widths, width - len(_GAP) * (len(widths) - 1))
    for row in (*titles, *table.rows):
        taken = list(map(_places, row))
        colours = None
        if coloured:
            is_title = row is table.titles
            colours = [
                _BOLD if is_title else _COLOURS.get(table.styles.get(c, ""), "") for c in row
            ]
        if all(map(le, taken, widths)):
            yield _line(table, row, taken, widths, colours)
            continue
        folded = [_folded(cell, most) for cell, most in zip(row, widths, strict=True)]
        for at in range(max(map(len, folded))):
            cells = [parts[at] if at < len(parts) else "" for parts in folded]
            yield _line(table, cells, list(map(_places, cells)), widths, colours)


def _line(
    table: Columns,
    cells: Sequence[str],
    taken: Sequence[int],
    widths: Sequence[int],
    colours: Sequence[str] | None,
) -> str:
    parts = []
    for column, text in enumerate(cells):
        room = " " * (widths[column] - taken[column])
        shown = text
        if colours is not None and text and colours[column]:
            shown = f"\x1b[{colours[column]}m{text}\x1b[0m"
        parts.append(room + shown if table.right[column] else shown + room)
    return _GAP.join(parts).rstrip()


def _narrow(widths: list[int], most: int) -> None:
    """Take from the widest columns, together, until all of them fit, or are one place wide."""
    while (excess := sum(widths) - most) > 0:
        widest = max(widths, default=1)
        if widest <= 1:
            return
        theirs = [at for at, each in enumerate(widths) if each == widest]
        next_to_it = max((each for each in widths if each < widest), default=1)
        less = min(widest - next_to_it, max(1, excess // len(theirs)))
        for at in theirs:
            widths[at] -= less


def _places(text: str) -> int:
    if text.isascii() or max(text) < _FIRST_WIDE:
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - only for text that needs it

    return cell_len(text)


def _folded(cell: str, most: int) -> list[str]:
    if _places(cell) <= most:
        return [cell]
    lines: list[str] = []
    line = ""
    for word in cell.split(" "):
        longer = f"{line} {word}" if line else word
        if _places(longer) <= most:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while _places(line) > most:
            part = _beginning(line, most)
            lines.append(part)
            line = line[len(part) :]
    return [*lines, line] if line or not lines else lines


def _beginning(text: str, most: int) -> str:
    """Return as much of a text as fits; one character at least."""
    end = min(len(text), most)
    while end > 1 and _places(text[:end]) > most:
        end -= 1
    return text[: max(1, end)]

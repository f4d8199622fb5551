"""How owners are told apart: six colours for the largest, neutral patterns for all others; pure.

A look also has a mark, one or two letters, for bars without room for the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_lowercase, digits

from monitor.facts.formats import user_number

# Numbers of the style sheet's colours; its fourth is too much like its first in the dark.
PALETTE = (0, 1, 2, 3, 5, 6)
COLOURS = len(PALETTE)
# A pattern is a kind of lines, a density and a tone.
KINDS, DENSITIES, TONES = 6, 2, 3
PATTERNS = KINDS * DENSITIES * TONES
# The lines of a pattern's kind in a square of 8.
LINES = (
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M0 4H8",
    "M4 0V8",
    "M3 3h2v2h-2z",
    "M4 0V8M0 4H8",
)


@dataclass(frozen=True, slots=True)
class Look:
    """`colour`: 0 to 5; None: neutral with `pattern`."""

    mark: str
    colour: int | None = None
    pattern: int = 0

    @property
    def kind(self) -> int:
        return self.pattern % KINDS

    @property
    def density(self) -> int:
        return self.pattern // KINDS % DENSITIES

    @property
    def side(self) -> int:
        """The size of the pattern's square in pixels."""
        return 5 + 4 * self.density

    @property
    def tone(self) -> int:
        return self.pattern // KINDS // DENSITIES % TONES

    @property
    def css(self) -> str:
        """The classes of the style sheet."""
        if self.colour is not None:
            return f"u{PALETTE[self.colour]}"
        return f"u-n k{self.kind} d{self.density} t{self.tone}"


def looks(sizes: Mapping[str, float]) -> dict[str, Look]:
    """A look for each owner. sizes: their use, by which the largest get the colours."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    made: dict[str, Look] = {}
    # By name within each group: a change of ranks within it changes no look.
    for name in sorted(ranked[:COLOURS]) + sorted(ranked[COLOURS:]):
        made[name] = next_look(name, made)
    return made


def next_look(name: str, others: Mapping[str, Look]) -> Look:
    """The look of one more owner: a free colour, else a free pattern."""
    mark = _mark(name, {look.mark for look in others.values()})
    colours = {look.colour for look in others.values()} - {None}
    if len(colours) < COLOURS:
        return Look(mark, colour=_free(name, COLOURS, colours))
    neutral = [look.pattern for look in others.values() if look.colour is None]
    # With more owners than patterns, only the marks differ.
    lap = len(neutral) // PATTERNS * PATTERNS
    return Look(mark, pattern=_free(name, PATTERNS, set(neutral[lap:])))


def _free(name: str, count: int, taken: Iterable[int | None]) -> int:
    """The owner's own number, or the next one that is free."""
    first, used = user_number(name) % count, set(taken)
    return next(n % count for n in range(first, first + count) if n % count not in used)


def _mark(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(mark for mark in _marks(name) if mark not in used)


def _marks(name: str) -> Iterator[str]:
    """Initials first, then any other pair, then longer ones."""
    first = (name[:1] or "?").lower()
    for letter in (*name[1:].lower(), *digits, *ascii_lowercase):
        if letter.isalnum():
            yield first + letter
    number = 10
    while True:
        yield f"{first}{number}"
        number += 1

r"""Output of another user's job for a terminal: only colours may control it.

A sequence of the terminal could set its title, hide text, or type into it.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from itertools import islice

from monitor.facts.input_rules import escaped

# Colours, line ends and tabs stay; a carriage return would overwrite what was printed before.
_KEPT = re.compile(r"\x1b\[[0-9;:]*m|\r?\n|\r|\t")
_NUMBERS = re.compile(r"[0-9]+")
# Of text, background and underline: the numbers after them are a colour.
COLOURS = ("38", "48", "58")
# A line end or a colour of which the rest has not arrived.
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,40})?|\r)\Z")


class ForeignOutput:
    """Takes the output in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def feed(self, data: bytes) -> bytes:
        """The text so far, with its other control characters as \\x1b."""
        text = self._rest + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._rest = unfinished.group() if unfinished else ""
        return _shown(text.removesuffix(self._rest) if self._rest else text)

    def end(self) -> bytes:
        """The rest of the text, at the end of the output."""
        text, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return _shown(text)


def _hides_text(sequence: str) -> bool:
    """Whether one of its numbers is 8, outside of a colour such as 38;5;8 or 38;2;8;8;8."""
    numbers = iter([number.lstrip("0") for number in _NUMBERS.findall(sequence)])
    for number in numbers:
        if number in COLOURS:
            length = 1 if next(numbers, "") == "5" else 3
            deque(islice(numbers, length), maxlen=0)
        elif number == "8":
            return True
    return False


def _shown(text: str) -> bytes:
    parts, at = [], 0
    for kept in _KEPT.finditer(text):
        word = kept.group()
        if _hides_text(word):
            word = ""
        parts += [escaped(text[at : kept.start()]), "\n" if word.startswith("\r") else word]
        at = kept.end()
    return "".join([*parts, escaped(text[at:])]).encode()

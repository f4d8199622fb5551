r"""Output of another user's job for a terminal: only colours may control it.

A sequence of the terminal could set its title, hide text, or type into it.
"""

from __future__ import annotations

import codecs
import re

from monitor.facts.input_rules import escaped

# Colours, line ends and tabs stay; a carriage return would overwrite what was printed before.
_KEPT = re.compile(r"\x1b\[[0-9;:]*m|\r?\n|\r|\t")
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


def _shown(text: str) -> bytes:
    parts, at = [], 0
    for kept in _KEPT.finditer(text):
        word = kept.group()
        parts += [escaped(text[at : kept.start()]), "\n" if word.startswith("\r") else word]
        at = kept.end()
    return "".join([*parts, escaped(text[at:])]).encode()

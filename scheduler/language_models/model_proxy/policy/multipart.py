"""Policy: small fields of a form (multipart/form-data, RFC 7578) whose files pass by.

Only the values of the wanted fields are kept, so the memory is bounded, however large a file is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

LONGEST_BOUNDARY = 200
LONGEST_HEAD, LONGEST_VALUE, MOST_FIELDS, MOST_BLANKS = 8 * 1024, 1024, 1000, 100
_NAME = re.compile(rb';\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_FILE = re.compile(rb";\s*filename\*?\s*=", re.IGNORECASE)
_BAD = "The body is no valid form (multipart/form-data)."


class InvalidForm(ValueError):
    """The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value and its place in the body."""

    value: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.value)


class _At(Enum):
    BODY = 1
    DELIMITER = 2
    HEAD = 3
    END = 4


def boundary_of(content_type: str) -> bytes:
    """Raises InvalidForm."""
    match = _BOUNDARY.search(content_type)
    boundary = "" if match is None else match[1] or match[2]
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise InvalidForm("The Content-Type of the form lacks its boundary.")
    return boundary.encode("latin-1", "replace")


class FormReader:
    """`feed` all pieces, then `fields` has the wanted ones. Raises InvalidForm."""

    def __init__(self, boundary: bytes, wanted: Collection[str]) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._wanted = {name.encode() for name in wanted}
        # As if a line had ended before the first delimiter.
        self._rest, self._at, self._offset = b"\r\n", _At.BODY, -2
        self._parts = 0
        self._name: bytes | None = None
        self._value, self._start = b"", 0
        self.fields: dict[str, Field] = {}

    @property
    def is_complete(self) -> bool:
        return self._at is _At.END

    def feed(self, piece: bytes) -> None:
        self._rest += piece
        while self._at is not _At.END and self._step():
            pass
        if self._at is _At.END:
            self._drop(len(self._rest))

    def _step(self) -> bool:
        """Whether the next step has what it needs."""
        if self._at is _At.BODY:
            return self._body()
        return self._after_delimiter() if self._at is _At.DELIMITER else self._head()

    def _body(self) -> bool:
        at = self._rest.find(self._delimiter)
        is_found = at >= 0
        size = at if is_found else max(0, len(self._rest) - len(self._delimiter) + 1)
        if self._name is not None:
            self._value += self._rest[:size]
            if len(self._value) > LONGEST_VALUE:
                raise InvalidForm(f"The field {self._name.decode()} is too long.")
        self._drop(size)
        if is_found:
            self._keep()
            self._drop(len(self._delimiter))
            self._at = _At.DELIMITER
        return is_found

    def _keep(self) -> None:
        if self._name is None:
            return
        name = self._name.decode()
        if name in self.fields:
            raise InvalidForm(f"The form has the field {name} twice.")
        self.fields[name] = Field(self._value, self._start)
        self._name, self._value = None, b""

    def _after_delimiter(self) -> bool:
        """The line ends, after blanks; or the form does, with two hyphens."""
        line = self._rest.lstrip(b" \t")
        if len(self._rest) - len(line) > MOST_BLANKS:
            raise InvalidForm(_BAD)
        if len(line) < 2:
            return False
        if self._rest.startswith(b"--"):
            self._at = _At.END
        elif line.startswith(b"\r\n"):
            self._parts += 1
            if self._parts > MOST_FIELDS:
                raise InvalidForm(f"The form has more than {MOST_FIELDS} fields.")
            # The line's end stays, as the head may be empty.
            self._drop(len(self._rest) - len(line))
            self._at = _At.HEAD
        else:
            raise InvalidForm(_BAD)
        return True

    def _head(self) -> bool:
        at = self._rest.find(b"\r\n\r\n")
        if at > LONGEST_HEAD or (at < 0 and len(self._rest) > LONGEST_HEAD):
            raise InvalidForm("The head of a field of the form is too long.")
        if at < 0:
            return False
        name = _name(self._rest[:at])
        self._drop(at + 4)
        self._name = name if name in self._wanted else None
        self._value, self._start = b"", self._offset
        self._at = _At.BODY
        return True

    def _drop(self, size: int) -> None:
        self._rest = self._rest[size:]
        self._offset += size


def _name(head: bytes) -> bytes | None:
    """The name of a field that is no file."""
    for line in head.split(b"\r\n"):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition" and not _FILE.search(value):
            match = _NAME.search(value)
            return None if match is None else match[1] if match[1] is not None else match[2]
    return None

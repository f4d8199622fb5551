"""A job's log by byte offset, and its bytes as text that is safe to show."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from pathlib import Path

from msgspec import Struct

CHUNK = 64 * 1024
# Lines of longer logs are not numbered.
COUNT_CHUNK, MOST_COUNTED = 1024 * 1024, 32 * 1024 * 1024
# A control sequence that is longer than this is not one.
LONGEST_ESCAPE = 256
ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,99}[ -/]{0,9}[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]{0,250}(?:\x07|\x1b\\)"  # OSC, DCS …: titles, links
    r"|\x1b[ -/]{1,9}[0-~]"  # character sets
    r"|\x1b[0-OQ-WYZ\\`-~]"
)
# A possible beginning of an escape sequence at the end of the data.
PARTIAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*\Z|\x1b(?:[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
# Control characters except tab, line feed and carriage return; and bidirectional controls.
COLOUR = re.compile(r"\x1b\[[0-9;]{0,40}m")
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class LogPiece(Struct, frozen=True):
    """Bytes of a log from `start`; `size` is how long the log was then."""

    start: int
    data: bytes
    size: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def size_of(path: Path) -> int:
    """Size of the log in bytes; 0 = there is none yet."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def read(path: Path, offset: int = 0, limit: int = CHUNK) -> LogPiece:
    """At most `limit` bytes from `offset`; empty beyond the end or without a log.

    A log of another engine is in a folder of the job's account, which could put a link there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return LogPiece(0, b"", 0)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return LogPiece(0, b"", 0)
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return LogPiece(0, b"", 0)
        size = os.fstat(descriptor).st_size
        start = min(offset, size)
        return LogPiece(start, os.pread(descriptor, max(0, min(limit, size - start)), start), size)
    finally:
        os.close(descriptor)


def tail(path: Path, limit: int = CHUNK) -> LogPiece:
    """The last `limit` bytes."""
    return read(path, max(0, size_of(path) - limit), limit)


class Decoder:
    """Turns bytes that come in pieces into text: UTF-8 with replacement, nothing but text.

    Cursor movements are taken out, other control characters become �. Colours are taken out too,
    unless `keeps_colours`: then "ESC [ numbers m" stays.
    """

    def __init__(self, start: int = 0, *, keeps_colours: bool = False) -> None:
        self._clean = clean_with_colours if keeps_colours else clean
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._kept = ""
        # A tail may begin within a character.
        self._may_begin_within = start > 0

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text of `data`. An incomplete end is kept for the next piece."""
        if self._may_begin_within and data:
            data = _from_first_character(data)
            self._may_begin_within = False
        text = self._kept + self._decode(data, final)
        # "\r\n" must not be torn apart either.
        at = _settled(text) if not final else len(text)
        self._kept = text[at:]
        return self._clean(text[:at])


def clean(text: str) -> str:
    return UNSAFE.sub("\ufffd", ESCAPE.sub("", text).replace("\r\n", "\n"))


def clean_with_colours(text: str) -> str:
    """The text with the sequences that set colours, and without all others."""
    colours = COLOUR.findall(text)
    pieces = [clean(piece) for piece in COLOUR.split(text)]
    return "".join(a + b for a, b in zip(pieces, [*colours, ""], strict=True))


def lines_before(path: Path, offset: int) -> int | None:
    """The number of line feeds before `offset`; None: too much to count."""
    if offset > MOST_COUNTED:
        return None
    count, at = 0, 0
    while at < offset and (piece := read(path, at, min(COUNT_CHUNK, offset - at))).data:
        count += piece.data.count(b"\n")
        at = piece.end
    return count


def as_displayed(text: str) -> str:
    """The text as a terminal shows it: a progress bar that rewrites its line is one line."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _from_first_character(data: bytes) -> bytes:
    within = 0
    while within < min(3, len(data)) and data[within] & 0xC0 == 0x80:
        within += 1
    return data[within:]


def _settled(text: str) -> int:
    """Up to where `text` means the same whatever comes next."""
    at = len(text)
    partial = PARTIAL.search(text, max(0, at - LONGEST_ESCAPE))
    if partial:
        at = partial.start()
    return at - 1 if text[:at].endswith("\r") else at

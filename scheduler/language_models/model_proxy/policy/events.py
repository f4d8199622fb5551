"""Policy: streams of server-sent events, by the HTML standard: where an event ends."""

from __future__ import annotations

TYPE = "text/event-stream"
# A longer event is passed on in parts; no error can follow a part of an event.
LONGEST_HELD = 64 * 1024
# The end of a line, and an empty line. Lines end with CRLF, LF or CR.
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r", b"\n\r")
_BOM = b"\xef\xbb\xbf"


def is_stream(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == TYPE


class WholeEvents:
    """Passes a stream on in whole events, so that a comment or an error may follow each part.

    A client would read an error after half an event as a part of that event.
    """

    def __init__(self) -> None:
        self._rest = b""
        # Whether the bytes that were passed on end with a whole event.
        self.is_whole = True

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on now."""
        if not self._rest and piece.endswith((b"\n\n", b"\n\r\n")):
            self.is_whole = True
            return piece
        # An end may have begun in the part that is held back.
        seen = max(0, len(self._rest) - 3)
        data = self._rest + piece
        cut = max(_after_last(data, end, seen) for end in _ENDS)
        if cut:
            self.is_whole = True
        elif not self.is_whole or len(data) > LONGEST_HELD:
            self.is_whole, cut = False, len(data)
        self._rest = data[cut:]
        if cut and self._rest and len(self._rest) > LONGEST_HELD:
            self.is_whole, self._rest = False, b""
            return data
        return data[:cut]

    def end(self) -> bytes:
        """The stream has ended in order: the rest of it."""
        rest, self._rest = self._rest, b""
        return rest


def _after_last(data: bytes, end: bytes, start: int) -> int:
    """The position after the last one; 0: there is none."""
    at = data.rfind(end, start)
    return 0 if at < 0 else at + len(end)


def without_bom(piece: bytes) -> bytes:
    """A byte order mark is one only at the beginning of a stream."""
    return piece.removeprefix(_BOM)

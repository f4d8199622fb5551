"""The standard input that `gpucoord submit` passes on to the job."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import sys
import termios

MOST_BYTES = 1024**2
TOO_LARGE = (
    "Standard input has more than 1 MiB. Write it to a file that the job reads, or leave it out"
    " with --no-stdin."
)
# After this time, the user is told that the command reads standard input.
PATIENCE_S = 2.0


class TooLarge(Exception):
    """The message says what to do."""


def read(descriptor: int = 0) -> bytes:
    """All of a pipe or a file; b"" for a terminal and for anything else. Raises TooLarge."""
    if not _is_readable(descriptor):
        return b""
    if not select.select([descriptor], [], [], PATIENCE_S)[0]:
        sys.stderr.write("gpucoord: reading standard input; --no-stdin leaves it out\n")
        sys.stderr.flush()
    data = bytearray()
    while piece := os.read(descriptor, MOST_BYTES):
        data += piece
        if len(data) > MOST_BYTES:
            raise TooLarge(TOO_LARGE)
    return bytes(data)


def has_data(descriptor: int = 0) -> bool:
    """Whether a pipe or a file has unread data."""
    if not _is_readable(descriptor):
        return False
    try:
        answer = fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0))
    except OSError:
        return False
    return bool(struct.unpack("i", answer)[0] > 0)


def _is_readable(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)

"""Forms with files that clients send: on disk until an instance has them, whatever their size."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import SpooledTemporaryFile

from scheduler.language_models.model_proxy.facts import Refused
from scheduler.language_models.model_proxy.policy.multipart import Field

# Smaller forms stay in memory.
IN_MEMORY = 256 * 1024
AT_ONCE = 256 * 1024


class SpooledForm:
    """The body of a form, in a file without a name; it ends with the process, or with `close`."""

    def __init__(self, folder: Path) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY, "w+b", dir=str(folder))  # noqa: SIM115
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._size = 0
        # Where the form names its model.
        self.model: Field | None = None
        # Replaced bytes: from, to, and what the instance gets instead.
        self._splice = (0, 0, b"")

    @property
    def size(self) -> int:
        start, end, text = self._splice
        return self._size - (end - start) + len(text)

    async def write(self, piece: bytes) -> None:
        """Raises Refused: the disk is full."""
        self._buffer.append(piece)
        self._buffered += len(piece)
        self._size += len(piece)
        if self._buffered >= AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        data, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        try:
            if self._size <= IN_MEMORY:
                self._file.write(data)
            else:
                await asyncio.to_thread(self._file.write, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            text = "The server's disk has no room for this upload. Try again later."
            raise Refused(507, text, type_="server_error", retry_after_s=60) from None

    def rename(self, model: str) -> None:
        if self.model is not None:
            self._splice = (self.model.start, self.model.end, model.encode())

    async def pieces(self) -> AsyncIterator[bytes]:
        start, end, text = self._splice
        async for piece in self._part(0, start):
            yield piece
        if text:
            yield text
        async for piece in self._part(end, self._size):
            yield piece

    async def _part(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            piece = await asyncio.to_thread(self._read, start, min(AT_ONCE, end - start))
            start += len(piece)
            yield piece

    def _read(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        data: bytes = self._file.read(size)
        return data

    def close(self) -> None:
        self._file.close()

"""Facts: what a GPU is doing, in one word."""

from __future__ import annotations

from enum import StrEnum


class GpuState(StrEnum):
    """idle: nobody on it · script_busy: a job of ours · external: others' processes alone ·

    failing: answers with errors · lost: does not answer. Further states come with model services.
    """

    IDLE = "idle"
    SCRIPT_BUSY = "script_busy"
    EXTERNAL = "external"
    FAILING = "failing"
    LOST = "lost"

"""The cost of a call: CPU seconds of this thread, independent of the load of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def measured(call: Callable[[], T]) -> tuple[T, float]:
    """The answer and its CPU seconds."""
    began = time.thread_time()
    answer = call()
    return answer, time.thread_time() - began

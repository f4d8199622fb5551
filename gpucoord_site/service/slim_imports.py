"""Import a library without others that it imports where they are installed, and nothing here needs.

Each process would have 5 to 10 MB more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_without(*names: str) -> Iterator[None]:
    """An import of these modules fails in the block, unless they are loaded already."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]

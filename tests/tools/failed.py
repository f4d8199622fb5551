"""Run once more, one after the other, the tests that failed in the last run.

pytest's own ``--last-failed`` runs every test when what failed was no test of the selection, such
as a worker that collected other tests than its neighbour. Here that is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

CACHE = Path(".pytest_cache/v/cache/lastfailed")


def failed(text: str) -> list[str]:
    """Names of the tests in pytest's cache of failures; workers and whole files left out."""
    return sorted(name for name in json.loads(text) if "::" in name)


def main() -> int:
    names = failed(CACHE.read_text()) if CACHE.exists() else []
    if not names:
        sys.stderr.write("The run failed outside its tests; its output says where.\n")
        return 1
    return int(pytest.main(["-n0", "-rfE", *names]))


if __name__ == "__main__":
    sys.exit(main())

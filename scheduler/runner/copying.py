"""Edge: copy one open file with rsync."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LONGEST_S = 60.0
LONGEST_TEXT = 300


class CopyFailed(Exception):
    """The text says why."""


def copy(handle: int, target: Path, longest_s: float = LONGEST_S) -> None:
    """Copy the file behind the handle to `target`, whose folders are made. Raises CopyFailed.

    The file is named by its handle, so that no process can replace it. A copy that takes too long
    continues at the next call where it stopped.
    """
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        done = subprocess.run(
            [
                "rsync", "--copy-links", "--times", "--perms", "--partial", "--",
                f"/proc/self/fd/{handle}", str(target),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(handle,),
            timeout=longest_s,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise CopyFailed("rsync is not installed.") from None
    except subprocess.TimeoutExpired:
        raise CopyFailed(f"Copying takes longer than {longest_s:g} s; it is continued.") from None
    except OSError as error:
        raise CopyFailed(f"{target.parent}: {error.strerror or error}.") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()[-LONGEST_TEXT:]
        raise CopyFailed(f"rsync ended with {done.returncode}: {text or 'no message'}")

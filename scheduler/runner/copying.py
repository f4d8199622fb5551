"""Edge: copy one open file with rsync."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

LONGEST_S = 60.0
LONGEST_TEXT = 300


class CopyFailed(Exception):
    """The text says why."""


def make_folders(root: Path, folder: Path) -> None:
    """Make the folders from `root` to `folder`, private to this account.

    Raises CopyFailed if another account could lead the copy elsewhere, as by a planted link.
    """
    try:
        top = root.stat()
        if top.st_mode & stat.S_IWOTH and not top.st_mode & stat.S_ISVTX:
            raise CopyFailed(f"Every account can change {root}.")
        # A file server may show files of root as those of another account.
        owners = {0, os.geteuid(), top.st_uid}
        below = root
        for part in folder.relative_to(root).parts:
            below = below / part
            with suppress(FileExistsError):
                below.mkdir(mode=0o700)
            status = below.lstat()
            is_closed = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not (stat.S_ISDIR(status.st_mode) and status.st_uid in owners and is_closed):
                raise CopyFailed(f"{below} is a link, or another account can change it.")
    except OSError as error:
        raise CopyFailed(f"{folder}: {error.strerror or error}.") from None


def copy(handle: int, target: Path, longest_s: float = LONGEST_S) -> None:
    """Copy the file behind the handle to `target`, in an existing folder. Raises CopyFailed.

    The file is named by its handle, so that no process can replace it. A copy that takes too long
    continues at the next call where it stopped.
    """
    try:
        done = subprocess.run(
            [
                # The copy belongs to this account, so it must not give its rights away.
                "rsync", "--copy-links", "--times", "--perms", "--chmod=ug-s", "--partial", "--",
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

"""Edge: the folders in a folder, read by a process of the user's own account."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monitor.facts import input_rules
from scheduler.runner.accounts import Account
from scheduler.runner.commands import run_command
from scheduler.runner.spawning import interpreter

PROGRAM = Path(__file__).with_name("programs") / "folders.py"
MOST_FOLDERS = 200
# A network file system may not answer.
LONGEST_S = 3.0


@dataclass(frozen=True, slots=True)
class Listing:
    """path: the folder, or the nearest one above the path that is there."""

    path: str
    parent: str = "/"
    folders: tuple[str, ...] = ()
    has_more: bool = False
    problem: str = ""


def list_folders(path: str, account: Account, closed: Path) -> Listing:
    """The folders that the account may read; none in the folder `closed`.

    The program starts as the service, because the account may not be able to read gpucoord's own
    files, and becomes the account before it looks at the path.
    """
    argv = [interpreter(), "-I", "-S", str(PROGRAM), path, str(closed.resolve()), str(MOST_FOLDERS)]
    if account.uid is not None and account.gid is not None:
        argv += [str(account.uid), str(account.gid), ",".join(map(str, account.groups))]
    result = run_command(argv, timeout_s=LONGEST_S)
    if not result.is_ok:
        return Listing(path, problem=f"The folder could not be read: {result.errors[-200:]}.")
    answer = input_rules.parse_json(result.output)
    return Listing(
        answer["path"],
        answer["parent"],
        tuple(answer["folders"]),
        answer["more"],
        answer["problem"],
    )

"""Policy: the OS accounts that jobs run as, and how well they separate users."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AccountRule:
    """`is_safe`: users' jobs are separated from each other and from gpucoord. `todo`: a remedy."""

    is_safe: bool
    text: str
    todo: str = ""


def account_rule(
    *, is_root: bool, run_as: str, service_account: str, open_because: str = ""
) -> AccountRule:
    """The accounts of jobs and the consequences.

    open_because: why jobs without root can open gpucoord's own files; "" = they can't.
    """
    if not is_root:
        return AccountRule(
            False,
            f"not root: all jobs run as {service_account}, the account of gpucoord itself. So"
            f" all users must trust each other: jobs can read and change each other's files;"
            f" {_own_files(open_because)}",
            "run gpucoord as root, or only for one user or a group that trusts each other",
        )
    if run_as == "service":
        return AccountRule(
            False,
            "run_as = service: every job runs as root, so every user who may submit a job has"
            " full control of this server",
            "set run_as = auto, and create an OS account for each user",
        )
    own = "root: each job runs as the OS account of its owner (uid 1000 or higher)"
    root = "jobs of administrators without an account run as root"
    if run_as == "nobody":
        return AccountRule(
            False,
            f"{own}; {root}. Users without an account share the account nobody (run_as = nobody):"
            " they can read and change each other's jobs",
            "create an OS account for each user, and set run_as = auto",
        )
    return AccountRule(True, f"{own}; without one, jobs are refused; {root}")


def _own_files(open_because: str) -> str:
    if open_because:
        return f"they can also read and change all of gpucoord ({open_because})"
    return (
        "Landlock closes the data folder and the processes of gpucoord to the jobs of ordinary"
        " users, but not the other files of this account"
    )

"""Edge: as which account of the machine a job runs, and with which environment it starts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_PERSON = 1000
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What jobs get of the service's own environment: never its secrets.
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True, slots=True)
class Account:
    """uid None = the service's own: nothing is changed."""

    name: str
    home: str
    shell: str = "/bin/sh"
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


def account_for(owner: str, *, superuser: bool, run_as: str) -> Account:
    """The account of this owner's jobs.

    Without privileges, or when told so, it is the service's own. Else the person's account of
    the same name; without one, the service's own for superusers and nobody for all others.
    """
    if os.geteuid() != 0 or run_as == "service":
        return _own()
    person = _entry(owner)
    if person is not None and person.pw_uid >= FIRST_PERSON and person.pw_name != "nobody":
        return _of(person)
    if superuser:
        return _own()
    nobody = _entry("nobody")
    if nobody is None:
        raise LookupError("this machine has no account nobody")
    return _of(nobody)


def start_folder(account: Account) -> str:
    """Where a job starts when it does not say: at home, if there is one."""
    return account.home if os.path.isdir(account.home) else "/tmp"  # noqa: PTH112, S108


def environment(
    account: Account,
    asked: Mapping[str, str],
    *,
    job_id: int,
    attempt: int,
    nonce: str,
    gpu_uuids: Sequence[str],
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What the job finds: its account's basics, then what it asked for, then what we insist on."""
    path = os.environ.get("PATH", SYSTEM_PATH) if account.uid is None else SYSTEM_PATH
    basics = {
        "PATH": path,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        # A log that is watched live should not wait in a buffer.
        "PYTHONUNBUFFERED": "1",
    }
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    insisted = {
        "GPUCOORD_JOB_ID": str(job_id),
        "GPUCOORD_ATTEMPT": str(attempt),
        "GPUCOORD_NONCE": nonce,
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **(more or {}),
    }
    return {**passed_on, **basics, **asked, **insisted}


def _own() -> Account:
    entry = pwd.getpwuid(os.geteuid())
    return Account(entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh")


def _of(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    shell = entry.pw_shell or "/bin/sh"
    return Account(entry.pw_name, entry.pw_dir, shell, entry.pw_uid, entry.pw_gid, groups)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None

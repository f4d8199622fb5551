"""Edge: the OS account of a job and the environment that it starts with."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_PERSON = 1000
NOBODY = "nobody"
MODELS = "gpucoord-models"
# Beside those that systemd gives to dynamic users.
FIRST_UNUSED, LAST_UNUSED = 61_000, 61_183
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an administrator sets for jobs in the service's environment: locale and libraries. TZ is not
# among them, as Django sets it; jobs have the machine's time zone.
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


class MissingAccount(LookupError):
    """The owner has no OS account of their own. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """uid None = the service's own: nothing is changed."""

    name: str
    home: str
    shell: str = "/bin/sh"
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


def account_for(owner: str, *, account: str | None, superuser: bool, run_as: str) -> Account:
    """Return the account of this owner's jobs, or raise MissingAccount.

    account: the OS account that is assigned to the owner; None = none is.
    Without root, or with run_as "service", it is the service's account. With root it is the
    assigned one. If this server has no such account, a superuser's jobs run as root. Other users'
    jobs run as the shared account only if run_as names it.
    """
    if os.geteuid() != 0 or run_as == "service":
        return _own()
    shared = _entry(NOBODY)
    person = None if account is None else _entry(account)
    if account is not None and person is not None and _is_own(person, account, shared):
        return _of(person)
    if superuser:
        return _own()
    if run_as != NOBODY:
        raise MissingAccount(_why_missing(owner, account))
    if shared is None:
        raise MissingAccount(f"This server has no OS account {NOBODY}, which run_as names.")
    return _of(shared)


def account_of_service(chosen: str, *, run_as: str) -> Account:
    """The account of a model service's processes. Raises MissingAccount.

    chosen: by an administrator; "" = an account that no person has: gpucoord-models if it exists,
    else an unused uid without a name. Without root, or with run_as "service", it is the service's.
    """
    if os.geteuid() != 0 or run_as == "service":
        return _own()
    entry = _entry(chosen or MODELS)
    if chosen and entry is None:
        raise MissingAccount(
            f"This server has no OS account {chosen}. Create it, or choose another for the service."
        )
    if entry is not None and (chosen or entry.pw_uid != 0):
        return _of(entry)
    unused = _unused_uid()
    return Account(MODELS, "/tmp", uid=unused, gid=unused)  # noqa: S108


def _unused_uid() -> int:
    """Outside the range of people and of system accounts; no account has it."""
    for uid in range(FIRST_UNUSED, LAST_UNUSED):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    raise MissingAccount(f"Create the OS account {MODELS}: no unused uid is left.")


def _why_missing(owner: str, account: str | None) -> str:
    if account is None:
        return (
            f"No OS account is assigned to {owner}, so jobs of {owner} can't run."
            " An administrator can assign one in the admin, under OS accounts."
        )
    called = "" if account == owner else f" {account}"
    return (
        f"{owner} has no OS account{called} on this server, so jobs of {owner} can't run."
        " An administrator can create the OS account with this name (uid 1000 or higher),"
        f" or set run_as = {NOBODY} so that users without one share the account {NOBODY}."
    )


def _is_own(person: pwd.struct_passwd, account: str, shared: pwd.struct_passwd | None) -> bool:
    """Whether this is the account itself, and that of a person.

    Some directories ignore case: they return the account alice for Alice too.
    """
    is_shared = person.pw_name == NOBODY or (shared and person.pw_uid == shared.pw_uid)
    return person.pw_uid >= FIRST_PERSON and person.pw_name == account and not is_shared


def start_folder(account: Account) -> str:
    """The default folder of a job: the account's home, if it exists."""
    return account.home if os.path.isdir(account.home) else "/tmp"  # noqa: PTH112, S108


def environment(
    account: Account,
    requested: Mapping[str, str],
    *,
    job_id: int,
    attempt: int,
    nonce: str,
    gpu_uuids: Sequence[str],
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The job's environment: the account's basics, then requested variables, then fixed ones."""
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
    return {**passed_on, **basics, **requested, **insisted}


def _own() -> Account:
    """The service's account. In a container, its uid may be in no list of accounts."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return Account(str(os.geteuid()), os.environ.get("HOME", "/"))
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

"""Edge: the OS account of a job, the environment that it starts with, and its lasting folder.

    JOB/N.yield          exists while attempt N is asked to leave its GPU
    JOB/checkpoint       for data that the job needs when it runs again
    JOB/given/N.progress how far attempt N has come, written by the job
    JOB/given/N.result   what attempt N has produced, written by the job
    JOB/given/N.terminal the socket of an interactive job's terminal
    JOB/attempt-N        files of attempt N of another engine; they belong to the job's account

    batch-N/given/       items for the workers of batch N, and their answers

For jobs with the service's account it is in the data folder. Other accounts cannot enter that, so
their folders are beside it or, if that is not accessible either, in /var/tmp, under a name that is
stored in the data folder.
"""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import re
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from scheduler.runner import files

# Edge: entries of OS accounts by NSS. An account whose directory is away is not a missing one.
#
# getpwnam returns nothing in both cases. Therefore, after it found nothing, the NSS module of
# each directory in the passwd line of nsswitch.conf is asked for its own answer.


NSSWITCH = Path("/etc/nsswitch.conf")
# These read the files and the processes of this machine only.
LOCAL_SERVICES = frozenset({"files", "compat", "db", "systemd"})
# enum nss_status of glibc. 1 = success, -1 = the service is unavailable, -2 = try again.
NOT_FOUND = 0
BUFFER_BYTES = 65_536


class _Passwd(ctypes.Structure):
    """struct passwd of glibc."""

    _fields_ = (
        ("pw_name", ctypes.c_char_p),
        ("pw_passwd", ctypes.c_char_p),
        ("pw_uid", ctypes.c_uint32),
        ("pw_gid", ctypes.c_uint32),
        ("pw_gecos", ctypes.c_char_p),
        ("pw_dir", ctypes.c_char_p),
        ("pw_shell", ctypes.c_char_p),
    )


class ServiceAway(LookupError):
    """This NSS service does not answer, so it is unknown whether the account exists."""


def entry(name: str) -> pwd.struct_passwd | None:
    """The entry of this account; None: there is none. Raises ServiceAway."""
    try:
        return pwd.getpwnam(name)
    except ValueError:
        return None
    except KeyError:
        pass
    for service in directories():
        if status(service, name) not in (None, NOT_FOUND):
            raise ServiceAway(service)
    return None


def directories() -> list[str]:
    """The NSS services for accounts that are not of this machine, in their order."""
    try:
        text = NSSWITCH.read_text(errors="replace")
    except OSError:
        return []
    line = re.search(r"^[ \t]*passwd[ \t]*:([^#\n]*)", text, re.MULTILINE)
    words = re.sub(r"\[[^\[\]]*\]", " ", line[1]).split() if line else []
    return [word for word in words if re.fullmatch(r"\w+", word) and word not in LOCAL_SERVICES]


def status(service: str, name: str) -> int | None:
    """The answer of the service's NSS module (enum nss_status); None: it is not installed."""
    try:
        module = ctypes.CDLL(f"libnss_{service}.so.2")
        look_up = getattr(module, f"_nss_{service}_getpwnam_r")
    except (OSError, AttributeError):
        return None
    account, problem = _Passwd(), ctypes.c_int()
    buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    size = ctypes.c_size_t(BUFFER_BYTES)
    arguments = (ctypes.byref(account), buffer, size, ctypes.byref(problem))
    return int(look_up(name.encode(errors="surrogateescape"), *arguments))


FIRST_PERSON = 1000
NOBODY = "nobody"
MODELS = "gpucoord-models"
# Beside those that systemd gives to dynamic users.
FIRST_UNUSED, LAST_UNUSED = 61_000, 61_183
SYSTEM_PYTHON = "/usr/bin/python3"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that an administrator sets for jobs by the service: locale and libraries. TZ is not
# among them, as Django sets it; jobs have the machine's time zone.
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
REMEMBERED_FOLDER = "jobs-folder.json"
LASTING = "/var/tmp"  # noqa: S108 - a folder of a random name is made there
PASSABLE = 0o711


class MissingAccount(LookupError):
    """The owner has no OS account of their own. The message says what to do."""


class UnknownAccount(MissingAccount):
    """Whether the OS account exists is unknown, because its directory is away."""


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
    """Return the account of this owner's jobs, or raise MissingAccount or UnknownAccount.

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


def in_group(account: Account, group: str) -> Account:
    """The account with this primary group; "" = its own. Raises MissingAccount.

    Without root (uid None) it keeps its own.
    """
    if not group or account.uid is None:
        return account
    with suppress(KeyError):
        gid = grp.getgrnam(group).gr_gid
        if gid in (account.gid, *account.groups):
            return replace(account, gid=gid)
    raise MissingAccount(
        f"The account {account.name} is no member of the group {group} on this server, so the job"
        " can't have it as its primary group."
    )


def account_of_service(chosen: str, *, run_as: str) -> Account:
    """The account of a model service's processes. Raises MissingAccount or UnknownAccount.

    chosen: by an administrator; "" = an account that no person has: gpucoord-models if it exists,
    else an unused uid without a name. Without root, or with run_as "service", it is the service's.
    """
    if os.geteuid() != 0 or run_as == "service":
        return _own()
    entry = _entry(chosen) if chosen else _listed(MODELS)
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


def python_program(program: Path, account: Account) -> list[str]:
    """How the account starts a program of gpucoord that needs the standard library only.

    The service's Python and the program itself may be in a folder that is closed to the account.
    """
    is_own = account.uid in (None, 0)
    python = sys.executable
    if not is_own and not _is_open(python) and _is_open(SYSTEM_PYTHON):
        python = SYSTEM_PYTHON
    if is_own or _is_open(str(program)):
        return [python, "-I", str(program)]
    return [python, "-I", "-c", program.read_text()]


@cache
def _is_open(path: str) -> bool:
    """Whether any account can read the file, and execute it if it is a program."""
    try:
        file = Path(path).resolve(strict=True)
        folders = {*file.parents, *Path(path).absolute().parents}
        can_pass = all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
        mode = file.stat().st_mode
    except OSError:
        return False
    needed = stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
    return can_pass and mode & needed == needed


def search_path(account: Account) -> str:
    """The PATH of the account's jobs."""
    return os.environ.get("PATH", SYSTEM_PATH) if account.uid is None else SYSTEM_PATH


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
    basics = {
        "PATH": search_path(account),
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
    """None: there is no such account. Raises UnknownAccount."""
    with suppress(KeyError, ValueError):
        return pwd.getpwnam(name)
    try:
        return entry(name)
    except ServiceAway as error:
        raise UnknownAccount(
            f"{unknown_account(name)}: the service {error} of {NSSWITCH} does not"
            " answer, so it is unknown whether the account exists."
        ) from None


def unknown_account(name: str) -> str:
    """The beginning of the message of UnknownAccount, which is the same for any service."""
    return f"The OS account {name} can't be looked up now"


def _listed(name: str) -> pwd.struct_passwd | None:
    """The account if it is known now. Accounts of services are in no directory."""
    try:
        return _entry(name)
    except UnknownAccount:
        return None


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files in which an attempt reports its progress and its result, and its terminal."""

    progress: Path
    result: Path
    terminal: Path


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """Paths in a job's environment."""

    path: Path

    @property
    def yields(self) -> Path:
        """A folder for yield files alone, which a job may read when the rest is closed to it."""
        return self.path / "yield"

    def yield_file(self, attempt: int, *, apart: bool = False) -> Path:
        return (self.yields if apart else self.path) / f"{attempt}.yield"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def given(self) -> Path:
        """The files that the job writes for gpucoord; they belong to the job's account."""
        return self.path / "given"

    def attempt(self, number: int) -> Path:
        """The folder of an attempt whose runner has the job's account, as in Slurm."""
        return self.path / f"attempt-{number}"

    def given_files(self, attempt: int) -> ReportFiles:
        names = (f"{attempt}.{kind}" for kind in ("progress", "result", "terminal"))
        return ReportFiles(*(self.given / name for name in names))

    def make(self, uid: int | None, gid: int | None) -> None:
        """Make it, if that is not done; the folders in it belong to the job's account."""
        _make_each(self.path, 0o700 if uid is None else PASSABLE)
        if uid is None:
            # Another account may have planted it, with a checkpoint for the job to load. A file
            # server may show folders of root as those of another account.
            _check_owner(self.path, os.geteuid(), self.path.parent.stat().st_uid)
        else:
            _let_pass(self.path.parent)
            _let_pass(self.path)
        for folder in (self.checkpoint, self.given):
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            if uid is not None and gid is not None:
                os.chown(folder, uid, gid, follow_symlinks=False)


def own_folder(data: Path, name: int | str, *, uid: int | None, chosen: Path | None) -> OwnFolder:
    """Of the job with this number, or of a batch by name; `chosen`: where all of them are to be."""
    if chosen is not None:
        return OwnFolder(chosen / str(name))
    if uid is None:
        return OwnFolder(files.jobs_folder(data) / str(name))
    return OwnFolder(_shared(data) / str(name))


def job_file_roots(data: Path, chosen: Path | None) -> list[Path]:
    """Folders that may contain files of jobs: that of the logs, and existing own folders."""
    remembered = files.read_json(data / REMEMBERED_FOLDER)
    others = [chosen, _beside(data), Path(remembered["path"]) if remembered else None]
    return [files.jobs_folder(data), *(path for path in others if path and path.is_dir())]


def _beside(data: Path) -> Path:
    return data.with_name(f"{data.name}-jobs")


@cache
def _shared(data: Path) -> Path:
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in data.parents):
        beside = _beside(data)
        # Earlier versions let all accounts list it.
        with suppress(OSError):
            if _check_owner(beside, os.geteuid()).st_mode & stat.S_IROTH:
                beside.chmod(PASSABLE)
        return beside
    remembered = files.read_json(data / REMEMBERED_FOLDER)
    if remembered is None:
        remembered = {"path": tempfile.mkdtemp(prefix="gpucoord-jobs-", dir=LASTING)}
        files.write_json(data / REMEMBERED_FOLDER, remembered)
    return Path(remembered["path"])


def _make_each(folder: Path, mode: int) -> None:
    """Make the folder and its parents, each with this mode: `mkdir` gives it only to the last."""
    if folder.is_dir():
        return
    _make_each(folder.parent, mode)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        # The umask must not matter.
        folder.chmod(mode)


def _let_pass(folder: Path) -> None:
    """Let other accounts traverse a folder of ours, without listing it."""
    if not _check_owner(folder, os.geteuid()).st_mode & stat.S_IXOTH:
        folder.chmod(PASSABLE)


def _check_owner(folder: Path, *owners: int) -> os.stat_result:
    """The status of a folder. Raises PermissionError for a link, or a folder of another account."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise PermissionError(errno.EPERM, "it is not a folder of the service's account", folder)
    return status

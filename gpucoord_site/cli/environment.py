"""The environment of this shell that a job gets, without secrets and what is only true here."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpucoord_site.cli.commands import Failed
from monitor.facts.input_rules import escaped, is_storable
from scheduler.facts.field_types import (
    LARGEST_ENV,
    LARGEST_LEFT_OUT,
    LONGEST_LEFT_OUT,
    OURS,
    VARIABLE_NAME,
)
from scheduler.facts.people import NAMES, UNLIMITED

# Programs read secrets from variables with these words in their name; a word ends at _ or a sign.
SECRET = re.compile(
    r"(?<![A-Z0-9])(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIES?|SESSION"
    r"|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|DATABASE_URL|CONNECTION_STRING|PGPASS(?:WORD|FILE)"
    r"|KRB5CCNAME)(?![A-Z0-9])|(?<=[A-Z0-9])_(?:KEY|PWD|PW|PASS|PAT|DSN)$",
    re.IGNORECASE,
)
# An address with a password, as in REDIS_URL=redis://user:password@host.
SECRET_VALUE = re.compile(r"[a-z0-9+.-]://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
WITH_PASSWORD = "an address with a password"  # noqa: S105 - no password
# Of the terminal and the login alone. Of some, the job gets its own.
LOCAL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOME|USER|LOGNAME|SHELL|MAIL|MAILCHECK|TERM|TERMCAP|TERMINFO|COLUMNS|LINES"
    r"|COLORTERM|LS_COLORS|DISPLAY|XAUTHORITY|STY|TMUX|TMUX_PANE|WINDOWID|LESS|LESSOPEN|LESSCLOSE"
    r"|PS[0-4]|HIST(?:FILE|SIZE|FILESIZE|CONTROL|IGNORE|TIMEFORMAT)"
    r"|XDG_(?:RUNTIME_DIR|VTNR|CURRENT_DESKTOP|MENU_PREFIX)"
    r"|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET"
)
# The same of families of variables, by the words with which their names begin.
LOCAL_FAMILIES = re.compile(
    r"(?:SSH|SUDO|DBUS|GPG|WAYLAND|XDG_SESSION|XDG_SEAT|VSCODE|SLURM|PBS|LSB)(?=_|$)"
)
# Of another queue or editor: their names are worth a word, since programs read them.
NAMED_FAMILIES = re.compile(r"(?:VSCODE|SLURM|PBS|LSB)_")
SHELL_FUNCTION = "BASH_FUNC_"
MOST_NAMED = 20
NOT_TEXT = "not UTF-8"
NO_NAME = "not a name"
GIVEN_BY_US = "set by gpucoord"
TOO_LARGE = (
    "The environment has {size} characters; at most {most} are possible."
    " Use --clean-env, and --env NAME for what the job needs."
)


class EnvironmentTooLarge(Failed):
    """The message says what to do."""


@dataclass(frozen=True, slots=True)
class Captured:
    """left_out: why each other variable does not reach the job: a pattern, or a reason."""

    variables: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def missed(self) -> dict[str, str]:
        """Of those left out, the variables that a program could miss."""
        return {name: why for name, why in self.left_out.items() if _is_missed(name)}

    def sentence(self) -> str:
        """The variables that a program could miss; "" = none."""
        missed = self.missed
        if not missed:
            return ""
        shown = [f"{name} ({why})" for name, why in list(missed.items())[:MOST_NAMED]]
        more = f" and {len(missed) - MOST_NAMED} more" if len(missed) > MOST_NAMED else ""
        return f"left out of the environment: {', '.join(shown)}{more}; --env NAME passes one on"


def captured(environ: Mapping[str, str], given: Collection[str] = ()) -> Captured:
    """The variables that a job on this machine gets. Raises EnvironmentTooLarge.

    given: names that the user passes on; they are not left out.
    """
    by_name = {name: _reason_of_name(name) for name in environ}
    size = sum(len(n) + len(environ[n]) + 1 for n, reason in by_name.items() if not reason)
    if size > LARGEST_ENV:
        raise EnvironmentTooLarge(TOO_LARGE.format(size=size, most=LARGEST_ENV))
    variables: dict[str, str] = {}
    left_out: dict[str, str] = {}
    own = _of_this_job(environ)
    for name, value in environ.items():
        if name in own:
            continue
        if reason := by_name[name] or _reason_of_value(value):
            left_out |= {} if name in given else {name: reason}
        else:
            variables[name] = value
    return Captured(variables, left_out)


def _of_this_job(environ: Mapping[str, str]) -> set[str]:
    """In a job, the variables of its first port that gpucoord set: another job has its own."""
    port = environ.get("GPUCOORD_PORT")
    names = {n for n in ("MASTER_PORT", "PET_MASTER_PORT") if port and environ.get(n) == port}
    return names | ({"MASTER_ADDR"} if "MASTER_PORT" in names else set())


def storable(left_out: Mapping[str, str]) -> dict[str, str]:
    """The names and reasons as the server stores them; the rest of very many are counted."""
    stored: dict[str, str] = {}
    room = LARGEST_LEFT_OUT - LONGEST_LEFT_OUT
    for count, (name, why) in enumerate(left_out.items()):
        shown = escaped(name.encode("utf-8", "backslashreplace").decode())
        shown = shown if len(shown) <= LONGEST_LEFT_OUT else f"{shown[: LONGEST_LEFT_OUT - 1]}…"
        room -= len(shown) + len(why) + 1
        if room < 0:
            return stored | {"more": f"{len(left_out) - count} variables"}
        stored[shown] = why
    return stored


def _reason_of_name(name: str) -> str:
    """Why a variable of this name is left out; "" = it is not."""
    if OURS.fullmatch(name):
        return GIVEN_BY_US
    if LOCAL.fullmatch(name):
        return name
    if family := LOCAL_FAMILIES.match(name):
        return f"{family[0]}_*"
    if not VARIABLE_NAME.fullmatch(name) or not is_storable(name):
        return NO_NAME
    if name.startswith(SHELL_FUNCTION):
        return ""
    word = SECRET.search(name)
    return word[0].upper() if word else ""


def _reason_of_value(value: str) -> str:
    # A byte that is no UTF-8 is a lone surrogate here, which JSON can't hold.
    if not is_storable(value):
        return NOT_TEXT
    return WITH_PASSWORD if SECRET_VALUE.search(value) else ""


def _is_missed(name: str) -> bool:
    """Whether a program may need it: not what is only true in this terminal, nor gpucoord's own."""
    if LOCAL.fullmatch(name) or (LOCAL_FAMILIES.match(name) and not NAMED_FAMILIES.match(name)):
        return False
    return not name.startswith("GPUCOORD_")


# Properties of this process that its jobs take over: soft limits, group, programs on PATH.

NOT_A_MEMBER = "you are no member of it"


def soft_limits() -> dict[str, int | str]:
    """As `ulimit -S -a` shows them, by the names of `NAMES`."""
    soft = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in NAMES
    }
    return {n: UNLIMITED if v == resource.RLIM_INFINITY else v for n, v in soft.items()}


def chosen_group() -> tuple[str, str]:
    """The group of `newgrp` or `sg`, and why a job can't have it; "" = the account's own."""
    import grp
    import pwd

    gid = os.getegid()
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return "", ""
    if gid == entry.pw_gid:
        return "", ""
    try:
        name = grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid), "it has no name"
    is_member = gid in os.getgrouplist(entry.pw_name, entry.pw_gid)
    return name, "" if is_member else NOT_A_MEMBER


def program_path(name: str, path: str | None = None) -> str | None:
    """As shutil.which, whose import takes a fiftieth of a submission; path: instead of PATH."""
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    folders = [""] if "/" in name else folders
    for candidate in (os.path.join(folder, name) for folder in folders):  # noqa: PTH118
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):  # noqa: PTH113
            return candidate
    return None

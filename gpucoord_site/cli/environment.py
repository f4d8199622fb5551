"""The environment of this shell that a job gets, without secrets and what is only true here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from monitor.facts.input_rules import is_storable
from scheduler.facts.field_parsers import LARGEST_ENV, OURS

# Programs read secrets from these.
SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH|COOKIE|SESSION"
    r"|_DSN$|DATABASE_URL|^PGPASS|^KRB5|_PAT$|^AWS_|^AZURE_|_KEY$|_PWD$|_PW$",
    re.IGNORECASE,
)
# An address with a password, as in REDIS_URL=redis://user:password@host.
SECRET_VALUE = re.compile(r"[a-z0-9+.-]://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
# Of the terminal, the login and the display; the account's own are set by the server.
LOCAL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOME|USER|LOGNAME|SHELL|MAIL|TERM|TERMCAP|COLUMNS|LINES|PS[0-9]|HIST.*"
    r"|SSH_.*|SUDO_.*|DISPLAY|WAYLAND_.*|XAUTHORITY|XDG_.*|DBUS_.*|GPG_.*|TMUX.*|STY|WINDOW.*"
    r"|LS_COLORS|LESS.*|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|SLURM_.*|VSCODE_.*|COLORTERM"
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOO_LARGE = (
    "The environment has {size} characters; at most {most} are possible."
    " Use --clean-env, and --env NAME for what the job needs."
)


class EnvironmentTooLarge(Exception):
    """The message says what to do."""


def captured(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job on this machine gets. Raises EnvironmentTooLarge."""
    passed_on = {name: value for name, value in environ.items() if _is_passed_on(name, value)}
    size = sum(len(name) + len(value) + 1 for name, value in passed_on.items())
    if size > LARGEST_ENV:
        raise EnvironmentTooLarge(TOO_LARGE.format(size=size, most=LARGEST_ENV))
    return passed_on


def _is_passed_on(name: str, value: str) -> bool:
    if not NAME.fullmatch(name) or OURS.fullmatch(name) or LOCAL.fullmatch(name):
        return False
    # A byte that is no UTF-8 is a lone surrogate here, which JSON can't hold.
    return is_storable(value) and not SECRET.search(name) and not SECRET_VALUE.search(value)

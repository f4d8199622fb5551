"""The OS accounts of this server that belong to people, and the user of each."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from pathlib import PurePath

from monitor.facts.accounts import AccountRanges
from monitor.models import OsAccount

# A directory that lists more accounts is searched by name instead.
MOST_LISTED = 500
NO_SHELLS = frozenset(("false", "nologin", "sync", "halt", "shutdown"))


@dataclass(frozen=True, slots=True)
class ListedAccount:
    """An OS account. full_name: from its comment field. user: its user, "" if it has none."""

    name: str
    full_name: str
    user: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.full_name})" if self.full_name else self.name


def accounts(ranges: AccountRanges) -> list[ListedAccount]:
    """The accounts with a shell and a uid of a person, by name; at most MOST_LISTED.

    Directories may not list their accounts.
    """
    users = dict(OsAccount.objects.values_list("name", "user__username"))
    entries = {entry.pw_name: entry for entry in pwd.getpwall() if _is_person(entry, ranges)}
    return [
        ListedAccount(name, entries[name].pw_gecos.split(",")[0].strip(), users.get(name, ""))
        for name in sorted(entries)[:MOST_LISTED]
    ]


def _is_person(entry: pwd.struct_passwd, ranges: AccountRanges) -> bool:
    has_shell = PurePath(entry.pw_shell).name not in NO_SHELLS
    return has_shell and ranges.is_person(entry.pw_uid)

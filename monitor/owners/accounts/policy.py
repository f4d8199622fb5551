"""Policy: whether a process of this host may log in as the user of its OS account."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from string import ascii_lowercase, digits

from msgspec import Struct

from monitor.facts.accounts import FIRST_USER_UID, NOBODY, LocalAccounts, LocalRule, Peer
from monitor.facts.formats import user_number

# The uid of files and processes whose account another user namespace does not know.
OVERFLOW_UID = 65534
OF_A_JOB = "A job that runs as root or as the account of gpucoord can't log in by its uid."
# Names that a user can have here, as Django allows them.
_USER_NAME = re.compile(r"[\w.@+-]{1,150}")


class InvalidRule(ValueError):
    """The setting is neither of its values; the message says which there are."""


def parse_rule(text: str, *, includes_superusers: bool = False) -> LocalRule:
    """`any`, `known`, `own`, `none` or `group:NAME`. Raises InvalidRule."""
    word, colon, group = text.partition(":")
    if colon and word == LocalAccounts.GROUP and group.strip():
        return LocalRule(
            accounts=LocalAccounts.GROUP,
            group=group.strip(),
            includes_superusers=includes_superusers,
        )
    if not colon and word in set(LocalAccounts) - {LocalAccounts.GROUP}:
        return LocalRule(accounts=LocalAccounts(word), includes_superusers=includes_superusers)
    raise InvalidRule("it must be any, known, own, none or group:NAME")


def default_rule(*, is_root: bool) -> str:
    """Without root all jobs share the service's account, so only that account may log in."""
    return LocalAccounts.ANY if is_root else LocalAccounts.OWN


def refusal(peer: Peer, rule: LocalRule) -> str | None:
    """Why this process may not log in by its account, in a sentence; None: it may.

    With the rule KNOWN, the caller also checks that the account belongs to a user.
    """
    if rule.accounts is LocalAccounts.NONE:
        return "Logging in by OS account is switched off here (local_accounts = none)."
    if peer.problem:
        return f"The process cannot be identified: {peer.problem}."
    if peer.container is not None:
        return f"A process in a container ({peer.container}) can't log in by its uid."
    if not peer.is_in_host_namespace:
        return "A process in another user namespace can't log in by its uid."
    if peer.is_administrator:
        return OF_A_JOB if peer.is_of_job else None
    return _uid_refusal(peer) or _account_refusal(peer, rule)


def _uid_refusal(peer: Peer) -> str | None:
    if peer.uid == OVERFLOW_UID or peer.account == NOBODY:
        return f"The account {NOBODY} can't log in by its uid."
    if peer.uid < FIRST_USER_UID:
        return f"uid {peer.uid} is the account of a service; only uids from 1000 can log in."
    if peer.account is None:
        return f"uid {peer.uid} has no account on this host."
    if not _USER_NAME.fullmatch(peer.account):
        return f"The account name {peer.account[:150]!r} can't be a user name here."
    return None


def _account_refusal(peer: Peer, rule: LocalRule) -> str | None:
    if rule.accounts is LocalAccounts.GROUP and rule.group not in peer.groups:
        return f"Only members of the group {rule.group} can log in by their account."
    if rule.accounts is LocalAccounts.OWN:
        return (
            "gpucoord runs without root here, so only its own account logs in by its uid"
            " (local_accounts = own). Use an API token, or ask an operator."
        )
    return None


# How owners are told apart: six colours for the largest, neutral patterns for all others; pure.

# Numbers of the style sheet's colours; its fourth is too much like its first in the dark.
PALETTE = (0, 1, 2, 3, 5, 6)
COLOURS = len(PALETTE)
# A pattern is a kind of lines, a density and a tone.
KINDS, DENSITIES, TONES = 6, 2, 3
PATTERNS = KINDS * DENSITIES * TONES
# The lines of a pattern's kind in a square of 8.
LINES = (
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M0 4H8",
    "M4 0V8",
    "M3 3h2v2h-2z",
    "M4 0V8M0 4H8",
)


class Look(Struct, frozen=True):
    """`colour`: 0 to 5; None: neutral with `pattern`."""

    mark: str
    colour: int | None = None
    pattern: int = 0

    @property
    def kind(self) -> int:
        return self.pattern % KINDS

    @property
    def density(self) -> int:
        return self.pattern // KINDS % DENSITIES

    @property
    def side(self) -> int:
        """The size of the pattern's square in pixels."""
        return 5 + 4 * self.density

    @property
    def tone(self) -> int:
        return self.pattern // KINDS // DENSITIES % TONES

    @property
    def css(self) -> str:
        """The classes of the style sheet."""
        if self.colour is not None:
            return f"u{PALETTE[self.colour]}"
        return f"u-n k{self.kind} d{self.density} t{self.tone}"


def looks(sizes: Mapping[str, float]) -> dict[str, Look]:
    """A look for each owner. sizes: their use, by which the largest get the colours."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    made: dict[str, Look] = {}
    # By name within each group: a change of ranks within it changes no look.
    for name in sorted(ranked[:COLOURS]) + sorted(ranked[COLOURS:]):
        made[name] = next_look(name, made)
    return made


def next_look(name: str, others: Mapping[str, Look]) -> Look:
    """The look of one more owner: a free colour, else a free pattern."""
    mark = _mark(name, {look.mark for look in others.values()})
    colours = {look.colour for look in others.values()} - {None}
    if len(colours) < COLOURS:
        return Look(mark, colour=_free(name, COLOURS, colours))
    neutral = [look.pattern for look in others.values() if look.colour is None]
    # With more owners than patterns, only the marks differ.
    lap = len(neutral) // PATTERNS * PATTERNS
    return Look(mark, pattern=_free(name, PATTERNS, set(neutral[lap:])))


def _free(name: str, count: int, taken: Iterable[int | None]) -> int:
    """The owner's own number, or the next one that is free."""
    first, used = user_number(name) % count, set(taken)
    return next(n % count for n in range(first, first + count) if n % count not in used)


def _mark(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(mark for mark in _marks(name) if mark not in used)


def _marks(name: str) -> Iterator[str]:
    """Initials first, then any other pair, then longer ones."""
    first = (name[:1] or "?").lower()
    for letter in (*name[1:].lower(), *digits, *ascii_lowercase):
        if letter.isalnum():
            yield first + letter
    number = 10
    while True:
        yield f"{first}{number}"
        number += 1

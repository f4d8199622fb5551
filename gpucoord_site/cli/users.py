"""`gpucoord user add|invite NAME`: add users and invite them. Needs no Django."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Returns 0, 2 with wrong options, or 125 when the request failed."""
    options = parser().parse_args(argv)
    if options.action == "invite" and (options.account or options.like):
        connection.complain("--account and --like belong to `gpucoord user add`.")
        return 2

    def question(client: Client) -> Json:
        if options.action == "invite":
            return client.invite_user(options.name)
        return client.add_user(options.name, options.account, options.like)

    return connection.tell(options, question, lines)


def lines(answer: Json) -> Iterator[str]:
    """Of a new user, or of an invitation."""
    name = answer["name"]
    if "url" in answer:
        until = datetime.fromisoformat(answer["expires_at"]).astimezone()
        yield f"Send this link to {name}. It sets a password once, until {until:%d %b %H:%M}:"
        yield f"  {answer['url']}"
        return
    yield f"The user {name} is added, with the OS account {answer['account']}."
    yield f"Next: `gpucoord user invite {name}` makes a link that sets the password."
    yield "On the server, the OS account logs in without a password."


def parser() -> ArgumentParser:
    made = connection.parser("user", "Add users and invite them. For superusers.")
    made.add_argument("action", choices=("add", "invite"), help="invite prints a link to send")
    made.add_argument("name", metavar="NAME", help="the user's name in gpucoord")
    made.add_argument("--account", metavar="NAME", help="the OS account (default: the same name)")
    made.add_argument("--like", metavar="USER", help="copy the groups and the quota of this user")
    return made


PARSERS = {"user": parser}

"""Make a token for REST and print it, once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import timezone

from gpucoord_site.cli import local_login
from gpucoord_site.management.plain import PlainCommand
from monitor.facts.accounts import TokenScope, up_to
from monitor.owners import rows

LONGEST_DAYS = 36_500


class Command(PlainCommand):
    help = "Make a token for REST and print it. It is shown only now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", metavar="USER", help="user of the token")
        parser.add_argument("--name", default="", help="purpose of the token, shown in the admin")
        parser.add_argument("--days", type=int, help="lifetime in days (default: unlimited)")
        parser.add_argument(
            "--scope",
            choices=[scope.value for scope in TokenScope],
            default=TokenScope.OPERATE.value,
            help="rights of the token: read; submit (and read); operate (all of the user's rights)",
        )
        parser.add_argument(
            "--save",
            action="store_true",
            help=f"keep it for `gpucoord submit` here, in {local_login.token_path()}, instead",
        )

    def handle(self, *args: object, **options: Any) -> None:
        days = options["days"]
        if days is not None and not 1 <= days <= LONGEST_DAYS:
            raise CommandError(f"--days must be from 1 to {LONGEST_DAYS}.")
        user = _user(options["user"])
        lives = None if days is None else timedelta(days=days)
        name = options["name"][:80]
        scopes = up_to(TokenScope(options["scope"]))
        row, text = rows.create_token(user, timezone.now(), name=name, lives=lives, scopes=scopes)
        if options["save"]:
            path = local_login.save_token(text)
            self.stdout.write(f"Saved a token of {user.username} in {path}.")
        else:
            self.stdout.write(text)
        until = f" until {row.expires_at:%Y-%m-%d %H:%M %Z}" if row.expires_at else ""
        self.stderr.write(f"Good{until}; the admin can revoke it ({row.prefix}…).")


def _user(name: str) -> User:
    try:
        user = User.objects.filter(username=name).first()
    except DatabaseError as error:
        hint = "Is GPUCOORD_DATA that of the server, and was `gpucoord up` run once?"
        raise CommandError(f"The users can't be read ({error}). {hint}") from None
    if user is None:
        raise CommandError(f"There is no user {name}. An operator adds people at /admin/.")
    if not user.is_active:
        raise CommandError(f"{name} may not log in; a token would be refused.")
    return user

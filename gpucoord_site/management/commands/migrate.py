"""Django's `migrate`, which also takes databases of the first builds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate

from gpucoord_site.service import first_builds


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        if apps := first_builds.adopt():
            raise CommandError(first_builds.too_old(apps))
        super().handle(*args, **options)

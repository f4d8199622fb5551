"""The first administrator, so that somebody can log in after the first start."""

from __future__ import annotations

import secrets

from django.contrib.auth.models import User
from django.db.models import Q

from gpucoord_site.config import Config


def make_first_admin(config: Config) -> str | None:
    """Create the administrator if there is none; returns the password that was made up for it.

    An ordinary account that has the name already is left as it is.
    """
    taken = Q(is_superuser=True) | Q(username=config.admin_user)
    if User.objects.filter(taken).exists():
        return None
    made_up = None if config.admin_password else secrets.token_urlsafe(12)
    User.objects.create_superuser(config.admin_user, password=config.admin_password or made_up)
    return made_up

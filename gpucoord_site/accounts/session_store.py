"""SESSION_ENGINE: sessions in the database, each with its user."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db

# Facts that a session keeps about itself; times are epoch seconds.
SIGNED_IN_AT = "signed_in_at"
SEEN_AT = "seen_at"
ADDRESS = "address"
BROWSER = "browser"


class SessionStore(db.SessionStore):
    @classmethod
    def get_model_class(cls) -> Any:
        from gpucoord_site.models import UserSession

        return UserSession

    def create_model_instance(self, data: Mapping[str, Any]) -> Any:
        row: Any = super().create_model_instance(dict(data))
        row.user_id = data.get(SESSION_KEY)
        row.signed_in_at, row.seen_at = _time(data.get(SIGNED_IN_AT)), _time(data.get(SEEN_AT))
        row.address, row.browser = data.get(ADDRESS, ""), data.get(BROWSER, "")
        return row


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

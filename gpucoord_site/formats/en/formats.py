"""Times with 24 hours, as on the pages of the site."""

from __future__ import annotations

DATETIME_FORMAT = "j M Y H:i"
TIME_FORMAT = "H:i"

from __future__ import annotations

import shutil


def chromium_path() -> str | None:
    """The path of Chromium, without windows if possible: drawing them costs more than the pages."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)

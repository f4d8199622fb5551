"""The address of the static files, which changes with any of them."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import django

from gpucoord_site import __version__

DIGEST_LENGTH = 12


def static_url(folder: Path) -> str:
    """The address below which the files of `folder` and of Django's admin are served.

    A browser may therefore keep each file for good, and shows no old one after an upgrade.
    """
    # Files of the admin and of htmx change with the versions of their packages.
    versions = f"{__version__} {django.__version__} {version('django-htmx')}"
    digest = hashlib.sha256(versions.encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = file.relative_to(folder).as_posix(), file.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return f"/static/{digest.hexdigest()[:DIGEST_LENGTH]}/"

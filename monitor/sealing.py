"""Seals secrets before they go into the database: who has only that can't read them."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


def seal(text: str) -> str:
    return _box().encrypt(text.encode()).decode()


def opened(sealed: str) -> str | None:
    """None: it was sealed under another secret key, such as another host's."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken:
        return None


def _box() -> Fernet:
    """The key follows from the secret key, and is used for nothing else."""
    digest = hashlib.sha256(b"gpucoord channel:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))

"""Whether systemd makes the daily backup."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
ENABLED = "etc/systemd/system/timers.target.wants"


def is_on(root: Path | None = None) -> bool | None:
    """Whether a timer `gpucoord-backup*.timer` is enabled. None: systemd does not run here."""
    root = ROOT if root is None else root
    if not (root / "run/systemd/system").is_dir():
        return None
    return any((root / ENABLED).glob("gpucoord-backup*.timer"))

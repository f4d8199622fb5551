"""gpucoord's own settings with a scheduler that looks by itself only every half minute."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpucoord_site.settings import *  # noqa: F403

LOOPS = f"{__name__}:RARE_LOOPS"
EVERY_S = 30


def __getattr__(name: str) -> Any:
    """RARE_LOOPS; made when it is needed, as the settings come before the models."""
    if name != "RARE_LOOPS":
        raise AttributeError(name)
    from gpucoord_site.service.slices import LOOPS as OWN

    return tuple(
        replace(loop, every_s=EVERY_S) if loop.name == "scheduler" else loop for loop in OWN
    )

"""Shipped program: writes the key frames of a video as images, with ffmpeg."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# ffmpeg replaces this process; the shell is not involved.
FILTER = "select='eq(pict_type,I)'"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns only when ffmpeg can't be started."""
    options = _parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        os.execvp("ffmpeg", arguments(options.input, options.output, options.width))  # noqa: S606
    except FileNotFoundError:
        sys.stderr.write("keyframes: ffmpeg is in no folder of PATH. Install it on this server.\n")
        return 3


def arguments(video: Path, folder: Path, width: int | None) -> list[str]:
    """The command line of ffmpeg."""
    scale = f",scale={width}:-2" if width else ""
    where = str(folder / "%05d.jpg")
    # An address or another protocol is never opened.
    source = f"file:{video}"
    return [
        *("ffmpeg", "-nostdin", "-hide_banner", "-y", "-protocol_whitelist", "file"),
        *("-i", source, "-vf", FILTER + scale, "-fps_mode", "vfr", where),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="video file")
    parser.add_argument("output", type=Path, help="folder for the images")
    parser.add_argument("--width", type=int, help="width of the images in pixels")
    return parser


if __name__ == "__main__":
    sys.exit(main())

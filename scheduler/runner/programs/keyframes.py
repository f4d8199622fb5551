"""Shipped program: writes the key frames of a video as images, with ffmpeg.

It reports its progress, and writes the result `{"images": …, "output": …}`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

FILTER = "select='eq(pict_type,I)'"
# An address or another protocol is never opened.
_FILES_ONLY = ("-protocol_whitelist", "file")
NOT_INSTALLED = "keyframes: ffmpeg is in no folder of PATH. Install it on this server.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of ffmpeg; 3: it can't be started. No shell is involved."""
    options = _parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    words = arguments(options.input, options.output, options.width)
    try:
        total_s = duration(options.input)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as ffmpeg:
            assert ffmpeg.stdout is not None  # noqa: S101 - it is a pipe
            report(ffmpeg.stdout, total_s)
    except FileNotFoundError:
        sys.stderr.write(NOT_INSTALLED)
        return 3
    status: int = ffmpeg.returncode
    if status == 0:
        images = sum(path.suffix == ".jpg" for path in options.output.iterdir())
        write_result({"images": images, "output": str(options.output)})
    return abs(status)


def arguments(video: Path, folder: Path, width: int | None) -> list[str]:
    """The command line of ffmpeg."""
    scale = f",scale={width}:-2" if width else ""
    where = str(folder / "%05d.jpg")
    return [
        *("ffmpeg", "-nostdin", "-hide_banner", "-nostats", "-progress", "pipe:1", "-y"),
        *(*_FILES_ONLY, "-i", f"file:{video}"),
        *("-vf", FILTER + scale, "-fps_mode", "vfr", where),
    ]


def duration(video: Path) -> float | None:
    """Length of the video in seconds; None: unknown."""
    words = ("ffprobe", "-v", "error", *_FILES_ONLY, "-show_entries", "format=duration", "-of")
    done = subprocess.run(
        [*words, "csv=p=0", f"file:{video}"], capture_output=True, text=True, check=False
    )
    with suppress(ValueError):
        return float(done.stdout)
    return None


def report(lines: Iterable[str], total_s: float | None) -> None:
    """Progress from the lines of ffmpeg; nothing if the length of the video is unknown."""
    for line in lines:
        name, _, value = line.strip().partition("=")
        if name == "out_time_us" and value.isdigit() and total_s:
            part = min(1.0, int(value) / 1e6 / total_s)
            if path := os.environ.get("GPUCOORD_PROGRESS_FILE"):
                Path(path).write_text(f"{part:.3f}", encoding="utf-8")


def write_result(body: object) -> None:
    """To GPUCOORD_RESULT_FILE; outside a job to standard output."""
    text = json.dumps(body)
    if path := os.environ.get("GPUCOORD_RESULT_FILE"):
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="video file")
    parser.add_argument("output", type=Path, help="folder for the images")
    parser.add_argument("--width", type=int, help="width of the images in pixels")
    return parser


if __name__ == "__main__":
    sys.exit(main())

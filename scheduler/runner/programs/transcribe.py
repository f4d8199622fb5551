"""Shipped worker: transcribes the recordings of a batch, with the model loaded once.

It uses the package faster-whisper or else openai-whisper, as installed for its Python. If neither
is, it runs the program `whisper` for each recording, which loads the model each time.
The text of a recording is written to a file in the folder `output`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

MISSING = (
    "transcribe: neither of the packages faster-whisper and openai-whisper is installed for"
    " {python}, and the program whisper is in no folder of PATH."
)
# Yields (progress from 0 to 1, text) for each part of a recording.
Transcribe = Callable[[str, Path], Iterator[tuple[float, str]]]


class Worker:
    """language: "" = it is recognised."""

    def __init__(self, model: str, language: str = "") -> None:
        self._model = model
        self._language = language or None

    def load(self) -> None:
        loaders = (_faster_whisper, _openai_whisper, _program)
        chosen = next(filter(None, (load(self._model, self._language) for load in loaders)), None)
        if chosen is None:
            sys.exit(MISSING.format(python=sys.executable))
        self._transcribe = chosen

    def run(self, item: str, args: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
        folder = Path(args["output"])
        folder.mkdir(parents=True, exist_ok=True)
        if not Path(item).is_file():
            raise FileNotFoundError(f"There is no recording {item}.")
        texts = []
        for progress, text in self._transcribe(item, folder):
            texts.append(text.strip())
            yield progress
        output = folder / f"{Path(item).stem}.txt"
        output.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return {"output": str(output), "characters": sum(map(len, texts))}


def _faster_whisper(name: str, language: str | None) -> Transcribe | None:
    """None: the package is not installed."""
    try:
        from faster_whisper import WhisperModel  # type: ignore[import-not-found]
    except ImportError:
        return None
    model = WhisperModel(name)

    def transcribe(recording: str, _: Path) -> Iterator[tuple[float, str]]:
        segments, info = model.transcribe(recording, language=language)
        for segment in segments:
            yield segment.end / max(info.duration, segment.end, 0.001), segment.text

    return transcribe


def _openai_whisper(name: str, language: str | None) -> Transcribe | None:
    """None: the package is not installed."""
    try:
        import whisper  # type: ignore[import-not-found]
    except ImportError:
        return None
    model = whisper.load_model(name)

    def transcribe(recording: str, _: Path) -> Iterator[tuple[float, str]]:
        for segment in model.transcribe(recording, language=language)["segments"]:
            yield 1.0, segment["text"]

    return transcribe


def _program(name: str, language: str | None) -> Transcribe | None:
    """None: there is no such program."""
    program = shutil.which("whisper")
    if program is None:
        return None

    def transcribe(recording: str, folder: Path) -> Iterator[tuple[float, str]]:
        words = [program, recording, f"--output_dir={folder}", f"--model={name}"]
        words += [f"--language={language}"] if language else []
        if status := subprocess.run([*words, "--output_format=txt"], check=False).returncode:
            raise RuntimeError(f"whisper ended with exit code {status}; see the log of the job.")
        yield 1.0, (folder / f"{Path(recording).stem}.txt").read_text(encoding="utf-8")

    return transcribe

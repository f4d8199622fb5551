"""Imitates the transcription of a recording: reports its progress, and uses no GPU."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=45)
    seconds = parser.parse_args().seconds
    item = os.environ.get("GPUCOORD_ITEM", "recording.wav")
    began = time.monotonic()
    print(f"{item}: simulated, nothing is computed", flush=True)
    while (passed := time.monotonic() - began) < seconds:
        print(f"::gpucoord progress {passed / seconds:.3f} {item}", flush=True)
        time.sleep(1)
    if path := os.environ.get("GPUCOORD_RESULT_FILE"):
        Path(path).write_text(json.dumps({"output": f"{item} has 12 minutes of speech"}))


if __name__ == "__main__":
    main()

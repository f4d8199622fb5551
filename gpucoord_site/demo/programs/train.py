"""Imitates a training run: prints its usual output, and uses no GPU."""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

SAVED = 85


def asked_to_yield() -> bool:
    return os.path.exists(os.environ.get("GPUCOORD_YIELD_FILE", ""))  # noqa: PTH110


def stop(*_: object) -> None:
    print("SIGTERM: saving checkpoints/last.pt … done", flush=True)
    sys.exit(143)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2-medium")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--minutes", type=float, default=20)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    noise = random.Random(options.model)
    print(f"model {options.model}, lr {options.lr:g}; simulated: nothing is computed", flush=True)
    saved = Path(os.environ.get("GPUCOORD_CHECKPOINT_DIR", "."), "step")
    began, step = time.monotonic(), int(saved.read_text()) if saved.exists() else 0
    if step:
        print(f"goes on from step {step}", flush=True)
    while (passed := time.monotonic() - began) < 60 * options.minutes:
        step += 25
        loss = 1.7 + 8.4 * math.exp(-passed / 240) + noise.gauss(0, 0.03)
        speed = 118 + noise.gauss(0, 3)
        print(f"step {step:>6}  loss {loss:.4f}  {speed:.0f} k tokens/s", flush=True)
        if step % 1000 == 0:
            print(f"eval  loss {loss + 0.11:.4f}  saved checkpoints/step-{step}.pt", flush=True)
        if asked_to_yield():
            saved.write_text(str(step))
            print(f"step {step:>6}  saved: others need the GPU", flush=True)
            sys.exit(SAVED)
        time.sleep(2)
    print("done", flush=True)


if __name__ == "__main__":
    main()

"""A worker that tests register: each item says what happens to it.

    python worker_program.py MARKS [LOAD_SECONDS]

It appends a line to MARKS for each load and each item. Items: `die`, `fail`, `hang`, `half`
(progress, then waits for the file MARKS.go), a number of seconds, or any other text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def say(**body: Any) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def answer(item: str, args: dict[str, Any], marks: Path) -> dict[str, Any]:
    if item == "die":
        os._exit(7)
    if item == "fail":
        return {"error": "no such recording"}
    if item == "hang":
        time.sleep(600)
    if item == "half":
        say(progress=0.5)
        while not marks.with_name(f"{marks.name}.go").exists():
            time.sleep(0.02)
    if item.replace(".", "").isdigit():
        time.sleep(float(item))
    return {"output": {"item": item, **args}}


def main() -> None:
    marks = Path(sys.argv[1])
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    with marks.open("a") as file:
        file.write("loaded\n")
        file.flush()
        print("a line for the log")  # noqa: T201
        say(ready=True)
        for line in sys.stdin:
            body = json.loads(line)
            file.write(f"{body['index']} {body['item']}\n")
            file.flush()
            say(**answer(body["item"], body["args"], marks))


if __name__ == "__main__":
    main()

"""Serves a Python object as a worker: `python serve.py MODULE:CLASS [ARGUMENT ...]`.

MODULE may also be the path of a file. The class gets the arguments. The object has `load()`, called
once, and `run(item, args)`, which returns the output of an item.
An exception fails the item. A generator may yield its progress, from 0 to 1, and return the output.
The module is searched in the current folder first. Its prints go into the log.
Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Protocol, TextIO


class Worker(Protocol):
    def load(self) -> None: ...

    def run(self, item: str, args: dict[str, Any]) -> Any: ...


def main(argv: list[str]) -> int:
    module, _, name = argv[0].rpartition(":")
    file = Path(module).absolute() if module.endswith(".py") else None
    # Instead of the folder of this program, whose modules are not meant.
    sys.path[0] = str(file.parent if file else Path.cwd())
    worker = getattr(importlib.import_module(file.stem if file else module), name)(*argv[1:])
    serve(worker, sys.stdin, _answers())
    return 0


def serve(worker: Worker, items: Iterable[str], answers: TextIO) -> None:
    """Load the worker, and answer items until there are no more."""
    worker.load()
    _say(answers, {"ready": True})
    for line in items:
        body = json.loads(line)
        try:
            text = json.dumps({"output": _output(worker.run(body["item"], body["args"]), answers)})
        except Exception as error:
            traceback.print_exc()
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        answers.write(text + "\n")
        answers.flush()


def _output(returned: Any, answers: TextIO) -> Any:
    if not isinstance(returned, Generator):
        return returned
    while True:
        try:
            _say(answers, {"progress": float(next(returned))})
        except StopIteration as end:
            return end.value


def _say(answers: TextIO, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()


def _answers() -> TextIO:
    """The standard output, in whose place all that is printed goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

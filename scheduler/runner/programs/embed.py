"""Shipped program: embeds the lines of a text file with sentence-transformers, or by a service.

It writes a JSON line `{"text": …, "vector": […]}` for each line, and the result to
GPUCOORD_RESULT_FILE. With --url the lines are sent to a service with OpenAI's interface. Its key is
read from a file that the job's account can read, so it is neither an argument nor a variable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BATCH, TIMEOUT_S = 64, 60.0
MISSING = (
    "embed: the package sentence-transformers is not installed for {python}."
    " Install it there, or change the script in the admin to another Python."
)


Encode = Callable[[list[str]], Any]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.url:
        encode: Encode = _service(options.url, options.model, options.key_file)
    else:
        try:
            from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]
        except ImportError:
            sys.stderr.write(MISSING.format(python=sys.executable) + "\n")
            return 3
        encode = SentenceTransformer(options.model).encode
    lines = [line for line in options.input.read_text(encoding="utf-8").splitlines() if line]
    report_progress(0, len(lines))
    dimensions = embed(encode, lines, options.output)
    write_result({"lines": len(lines), "dimensions": dimensions, "output": str(options.output)})
    return 0


def embed(encode: Encode, lines: list[str], output: Path) -> int:
    """Write the vectors; returns their dimensions, 0 without lines."""
    dimensions = 0
    with output.open("w", encoding="utf-8") as file:
        for begin in range(0, len(lines), BATCH):
            part = lines[begin : begin + BATCH]
            for text, vector in zip(part, encode(part), strict=True):
                dimensions = len(vector)
                file.write(json.dumps({"text": text, "vector": [float(x) for x in vector]}) + "\n")
            report_progress(begin + len(part), len(lines))
    return dimensions


def _service(url: str, model: str, key_file: Path | None) -> Encode:
    key = key_file.read_text(encoding="utf-8").strip() if key_file else ""

    def encode(texts: list[str]) -> list[list[float]]:
        request = urllib.request.Request(  # noqa: S310 - the schema allows http(s) alone
            url,
            json.dumps({"model": model, "input": texts}).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return [item["embedding"] for item in json.load(answer)["data"]]

    return encode


def report_progress(done: int, total: int) -> None:
    """To GPUCOORD_PROGRESS_FILE; nothing outside a job."""
    if path := os.environ.get("GPUCOORD_PROGRESS_FILE"):
        Path(path).write_text(f"{done}/{max(1, total)} lines", encoding="utf-8")


def write_result(body: Any) -> None:
    """To GPUCOORD_RESULT_FILE; outside a job to standard output."""
    text = json.dumps(body)
    if path := os.environ.get("GPUCOORD_RESULT_FILE"):
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="text file, one text a line")
    parser.add_argument("output", type=Path, help="file with a JSON line for each text")
    parser.add_argument("--model", required=True, help="folder or name of the model")
    parser.add_argument("--url", help="address of /v1/embeddings, instead of a local model")
    parser.add_argument("--key-file", type=Path, help="file with the key of the service")
    return parser


if __name__ == "__main__":
    sys.exit(main())

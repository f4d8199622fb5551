"""Shipped program: embeds the lines of a text file with a local model, or by a service.

A model file that ends in .gguf is run by xllamacpp, any other model by sentence-transformers.
It writes a JSON line `{"text": …, "vector": […]}` for each line, and the result to
GPUCOORD_RESULT_FILE. `Worker` loads the model once for the files of a batch.
With --url the lines are sent to a service with OpenAI's interface. Its key is read from a file that
the job's account can read, so it is neither an argument nor a variable.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

BATCH, TIMEOUT_S = 64, 60.0
# The longest text in tokens; a model with a shorter context has its own limit.
LONGEST_TEXT = 2048
MISSING = (
    "the package {package} is not installed for {python}."
    " Install it there, or change the script in the admin to another Python."
)


Encode = Callable[[list[str]], Any]


class Unusable(Exception):
    """The model or a text can't be used; the text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        if options.url:
            encode = _service(options.url, options.model, options.key_file)
        else:
            encode = local_model(options.model)
        lines = lines_of(options.input)
        report_progress(0, len(lines))
        dimensions = embed(encode, lines, options.output)
    except (Unusable, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"embed: {error}\n")
        return 3
    write_result({"lines": len(lines), "dimensions": dimensions, "output": str(options.output)})
    return 0


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line]


def embed(encode: Encode, lines: list[str], output: Path) -> int:
    """Write the vectors; returns their dimensions, 0 without lines."""
    dimensions = 0
    for done, width in vectors(encode, lines, output):
        dimensions = width
        report_progress(done, len(lines))
    return dimensions


def vectors(encode: Encode, lines: list[str], output: Path) -> Iterator[tuple[int, int]]:
    """Write the vectors; yields how many are written, and their dimensions."""
    with output.open("w", encoding="utf-8") as file:
        for begin in range(0, len(lines), BATCH):
            part = lines[begin : begin + BATCH]
            for text, vector in zip(part, encode(part), strict=True):
                file.write(json.dumps({"text": text, "vector": [float(x) for x in vector]}) + "\n")
            yield begin + len(part), len(vector)


class Worker:
    """Embeds the lines of each file of a batch into a file of the folder `output`."""

    def __init__(self, model: str) -> None:
        self._model = model

    def load(self) -> None:
        try:
            self._encode = local_model(self._model)
        except Unusable as error:
            sys.exit(f"embed: {error}")

    def run(self, item: str, args: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
        folder, file = Path(args["output"]), Path(item)
        folder.mkdir(parents=True, exist_ok=True)
        output, lines, dimensions = folder / f"{file.name}.jsonl", lines_of(file), 0
        for done, width in vectors(self._encode, lines, output):
            dimensions = width
            yield done / len(lines)
        return {"lines": len(lines), "dimensions": dimensions, "output": str(output)}


def local_model(model: str) -> Encode:
    """Load the model. Raises Unusable, also if its package is not installed."""
    try:
        if model.endswith(".gguf"):
            return _gguf(Path(model))
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]
    except ImportError as error:
        package = (error.name or str(error)).replace("_", "-")
        raise Unusable(MISSING.format(package=package, python=sys.executable)) from None
    encode: Encode = SentenceTransformer(model).encode
    return encode


def _gguf(model: Path) -> Encode:
    """The model in this process. It pools as its file says."""
    import xllamacpp

    if not model.is_file():
        raise Unusable(f"There is no model file {model}.")
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = str(model), True, False
    params.n_ctx = params.n_batch = params.n_ubatch = LONGEST_TEXT
    params.n_parallel = 1
    # The server of the library also listens, which is not needed here: at a free port, with a key.
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [secrets.token_hex(16)]
    server = xllamacpp.Server(params)

    def encode(texts: list[str]) -> list[list[float]]:
        answer = server.handle_embeddings({"input": texts})
        if "data" not in answer:
            raise Unusable(f"The model {model} refuses the texts: {str(answer)[:300]}")
        ordered = sorted(answer["data"], key=lambda item: item["index"])
        return [item["embedding"] for item in ordered]

    return encode


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
        Path(path).write_text(f"{done}/{max(1, total)} {done} of {total} lines", encoding="utf-8")


def write_result(body: Any) -> None:
    """To GPUCOORD_RESULT_FILE; outside a job to standard output."""
    text = json.dumps(body)
    if path := os.environ.get("GPUCOORD_RESULT_FILE"):
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="text file, one text per line")
    parser.add_argument("output", type=Path, help="file with a JSON line for each text")
    parser.add_argument("--model", required=True, help="name, folder or GGUF file of the model")
    parser.add_argument("--url", help="address of /v1/embeddings, instead of a local model")
    parser.add_argument("--key-file", type=Path, help="file with the key of the service")
    return parser


if __name__ == "__main__":
    sys.exit(main())

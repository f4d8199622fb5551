"""Shipped program: embeds the lines of a text file with a local model, or by a service.

A model file that ends in .gguf is run by xllamacpp, any other model by sentence-transformers.
It writes a JSON line `{"text": …, "vector": […]}` for each line, and the result to
GPUCOORD_RESULT_FILE. With --url the lines are sent to a service with OpenAI's interface. Its key is
read from a file that the job's account can read, so it is neither an argument nor a variable.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BATCH, TIMEOUT_S = 64, 60.0
# The longest text in tokens; a model with a shorter context has its own limit.
LONGEST_TEXT = 2048
MISSING = (
    "embed: the package {package} is not installed for {python}."
    " Install it there, or change the script in the admin to another Python."
)


Encode = Callable[[list[str]], Any]


class Unusable(Exception):
    """The model or a text can't be used; the text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        encode = _encoder(options)
        lines = [line for line in options.input.read_text(encoding="utf-8").splitlines() if line]
        report_progress(0, len(lines))
        dimensions = embed(encode, lines, options.output)
    except ImportError as error:
        package = (error.name or str(error)).replace("_", "-")
        sys.stderr.write(MISSING.format(package=package, python=sys.executable) + "\n")
        return 3
    except (Unusable, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"embed: {error}\n")
        return 3
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


def _encoder(options: argparse.Namespace) -> Encode:
    if options.url:
        return _service(options.url, options.model, options.key_file)
    if options.model.endswith(".gguf"):
        return _gguf(Path(options.model))
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    encode: Encode = SentenceTransformer(options.model).encode
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

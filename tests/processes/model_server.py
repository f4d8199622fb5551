"""A small OpenAI-compatible model server that can misbehave, as a program. Standard library only.

    python model_server.py --port 9000 --model m --boot-s 2 --tokens 20 --interval-s 0.05

A request's own fields `tokens`, `interval_s` and `fault` replace the options. Faults: `crash` (the
process ends before the answer), `crash_within` (in the middle of it), `hang` (no answer), `busy`
(503), `fail` (500), `refuse` (400). GET /stats counts the requests. POST /sleep and /wake_up change
what /is_sleeping says; with --lies, asleep it keeps what it holds. --stays: it ignores SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog")
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class ModelServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began_t = time.monotonic()
        self.stats: Counter[str] = Counter()
        self.is_asleep = False
        self.held = bytearray(options.hold_mib * 1024**2)

    @property
    def is_ready(self) -> bool:
        return time.monotonic() - self.began_t >= self.options.boot_s and not self.is_asleep

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                await self.answer(method, path, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if method == "GET" and path == "/health":
            send(
                writer,
                200 if self.is_ready else 503,
                {"status": "ok" if self.is_ready else "loading"},
            )
        elif method == "GET" and path == "/stats":
            send(writer, 200, dict(self.stats) | {"held_mib": len(self.held) // 1024**2})
        elif path == "/is_sleeping":
            send(writer, 200, {"is_sleeping": self.is_asleep})
        elif path.split("?")[0] in ("/sleep", "/wake_up"):
            self.sleep(path.startswith("/sleep"))
            send(writer, 200, {})
        elif method == "GET" and path == "/v1/models":
            send(writer, 200, {"object": "list", "data": [{"id": self.options.model}]})
        elif method == "POST" and path.startswith("/v1/"):
            await self.generate(path.removeprefix("/v1/"), json.loads(body), writer)
        else:
            send(writer, 404, {"error": {"message": "no such path"}})

    def sleep(self, is_asleep: bool) -> None:
        self.is_asleep = is_asleep
        if not self.options.lies:
            size = 0 if is_asleep else self.options.hold_mib
            self.held = bytearray(size * 1024**2)

    async def generate(
        self, kind: str, asked: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        self.stats["begun"] += 1
        fault = asked.get("fault") or self.options.fault
        if fault == "crash":
            os._exit(3)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "busy" or not self.is_ready:
            send(writer, 503, {"error": {"message": "loading model"}})
            return
        if fault == "fail":
            send(writer, 500, {"error": {"message": "the engine is dead"}})
            return
        if fault == "refuse":
            send(writer, 400, {"error": {"message": "the prompt is too long", "code": 400}})
            return
        if kind == "embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}]
            usage = {"prompt_tokens": 7, "total_tokens": 7}
            send(
                writer,
                200,
                {"object": "list", "model": asked["model"], "data": data, "usage": usage},
            )
        elif asked.get("stream"):
            await self.stream(kind, asked, writer)
        else:
            text = "".join([word async for word in self.words(asked)])
            send(writer, 200, whole(kind, asked, text, self.usage(asked)))
        self.stats["ended"] += 1

    async def stream(self, kind: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        try:
            async for word in self.words(asked):
                await chunk(writer, event(part(kind, asked, word)))
            await chunk(writer, event(part(kind, asked, None)))
            if (asked.get("stream_options") or {}).get("include_usage"):
                last = part(kind, asked, "") | {"choices": [], "usage": self.usage(asked)}
                await chunk(writer, event(last))
            await chunk(writer, b"data: [DONE]\n\n")
            await chunk(writer, b"")
        except (ConnectionError, asyncio.CancelledError):
            self.stats["left"] += 1
            raise

    async def words(self, asked: dict[str, Any]) -> AsyncIterator[str]:
        number = int(asked.get("tokens", self.options.tokens))
        interval = float(asked.get("interval_s", self.options.interval_s))
        size = int(asked.get("word_bytes", 0))
        for at in range(number):
            if interval:
                await asyncio.sleep(interval)
            if at == number // 2 and (asked.get("fault") or self.options.fault) == "crash_within":
                os._exit(3)
            yield "x" * size if size else WORDS[at % len(WORDS)] + " "

    def usage(self, asked: dict[str, Any]) -> dict[str, int]:
        answered = int(asked.get("tokens", self.options.tokens))
        return {"prompt_tokens": 7, "completion_tokens": answered, "total_tokens": 7 + answered}


def whole(kind: str, asked: dict[str, Any], text: str, usage: dict[str, int]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if kind == "completions":
        choice["text"] = text
    else:
        choice["message"] = {"role": "assistant", "content": text}
    name = "text_completion" if kind == "completions" else "chat.completion"
    about = {"id": "c1", "object": name, "created": 1, "model": asked["model"]}
    return about | {"choices": [choice], "usage": usage}


def part(kind: str, asked: dict[str, Any], word: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if word is None else None}
    if kind == "completions":
        choice["text"] = word or ""
    else:
        choice["delta"] = {} if word is None else {"content": word}
    about = {"id": "c1", "object": f"{kind}.chunk", "created": 1, "model": asked["model"]}
    return about | {"choices": [choice]}


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():
        raise ConnectionError
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def send(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--boot-s", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=5)
    parser.add_argument("--interval-s", type=float, default=0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--hold-mib", type=int, default=0)
    parser.add_argument("--lies", action="store_true")
    parser.add_argument("--stays", action="store_true")
    return parser.parse_args()


async def main() -> None:
    options = _options()
    if options.stays:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = await asyncio.start_server(
        ModelServer(options).connected, "127.0.0.1", options.port, limit=64 * 1024**2
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

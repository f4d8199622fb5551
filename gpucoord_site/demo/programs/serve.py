"""Imitates the server of a language model: OpenAI's protocol, made-up answers, no GPU."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = (
    "This answer is simulated: no model was loaded and nothing was computed. A real server would"
    " now answer your prompt, one token after another, at about this speed."
)
TOKEN_S = 0.04
LARGEST_BODY = 16 * 1024**2


class Answers(BaseHTTPRequestHandler):
    """Requests to one model. ready_t: monotonic time when its boot ends."""

    protocol_version = "HTTP/1.1"
    model = ""
    ready_t = 0.0

    def log_message(self, *_: object) -> None:
        """Requests are counted by gpucoord."""

    def do_GET(self) -> None:
        if self.path == "/health":
            is_ready = time.monotonic() >= self.ready_t
            self.send(200 if is_ready else 503, {"status": "ok" if is_ready else "loading"})
        elif self.path == "/v1/models":
            self.send(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self.send(404, {"error": {"message": "There is no such path."}})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            self.close_connection = True
            self.send(413, {"error": {"message": "The body is missing or too large."}})
            return
        body = self.rfile.read(int(length))
        kind = self.path.removeprefix("/v1/")
        try:
            request = json.loads(body)
            is_known = isinstance(request, dict) and kind in ("chat/completions", "completions")
        except ValueError:
            is_known = False
        if not is_known:
            self.send(400, {"error": {"message": "The demo answers completions only."}})
        elif request.get("stream"):
            self.stream(kind)
        else:
            for _ in tokens():
                pass
            self.send(200, self.part(kind, ANSWER, is_whole=True) | {"usage": usage(len(body))})

    def stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for token in tokens():
            self.chunk(json.dumps(self.part(kind, token)))
        self.chunk(json.dumps(self.part(kind, "") | {"choices": [], "usage": usage(100)}))
        self.chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.flush()

    def part(self, kind: str, text: str, *, is_whole: bool = False) -> dict[str, Any]:
        if kind == "completions":
            content: dict[str, Any] = {"text": text}
        else:
            content = {"message" if is_whole else "delta": {"role": "assistant", "content": text}}
        choice = {"index": 0, "finish_reason": "stop" if is_whole else None, **content}
        return {"id": "demo", "object": kind, "model": self.model, "choices": [choice]}

    def send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def tokens() -> Iterator[str]:
    for word in ANSWER.split():
        time.sleep(TOKEN_S)
        yield f"{word} "


def usage(size: int) -> dict[str, int]:
    sent, answered = size // 4, len(ANSWER.split())
    return {
        "prompt_tokens": sent,
        "completion_tokens": answered,
        "total_tokens": sent + answered,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--boot-s", type=float, default=5)
    options = parser.parse_args()
    Answers.model, Answers.ready_t = options.model, time.monotonic() + options.boot_s
    print(f"{options.model}: simulated, nothing is loaded", flush=True)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Answers)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()

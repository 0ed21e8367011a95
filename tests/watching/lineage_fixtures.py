"""A server that takes OpenLineage's events, and an environment without settings of its client."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class LineageServer:
    """Takes OpenLineage's events over HTTP, as a backend of it does."""

    def __init__(self, answer: int = 201) -> None:
        events: list[dict[str, Any]] = []
        self.events, self.goes_on = events, threading.Event()
        self.goes_on.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.goes_on.wait()
                events.append({"path": handler.path, **json.loads(body)})
                handler.send_response(answer)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """OpenLineage has no settings but those that a test makes; its client adds some to the environment."""
    before = {name: value for name, value in os.environ.items() if name.startswith("OPENLINEAGE")}
    for name in before:
        del os.environ[name]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield monkeypatch
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def lineage_server() -> Iterator[LineageServer]:
    server = LineageServer()
    yield server
    server.close()

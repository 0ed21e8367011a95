"""The S3 server of the tests: moto, in which of two conditional PUTs one wins also when both come at once.

Moto looks for the object, and stores the new one later: on a loaded machine two of four writers were both told that
they had made one file. So this process takes one request that writes at a time, each once its body is there.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class OneWriterAtATime:
    """A WSGI application around another."""

    def __init__(self, application: Any) -> None:
        self._application, self._writing = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return self._application(environ, start_response)
        if length := environ.get("CONTENT_LENGTH"):
            # A client that is stopped in the midst of a body keeps no other one waiting.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._writing:
            return self._application(environ, start_response)


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        OneWriterAtATime(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=MotoRequestHandler,
    )

"""Log records as JSON, one object a line, with the transaction that the record is about."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from datetime import datetime, timezone
from typing import Any

from trident.coordinators.threads import facts
from trident.coordinators.tracebacks import causes, text_of

# Longer messages, errors and tracebacks are cut in their middle: a line that no collector takes tells nothing.
_TEXT_MAX = 20_000


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; for a program with a logging of its own. Never raises.

    ``trident run --log-format json`` and the setting ``log_format`` use it. The keys, in this order; those behind
    ``message`` only where they are known:

    - ``ts``: UTC, ISO 8601 with milliseconds; ``level``; ``logger``; ``message``;
    - ``topology``, ``group``, ``txid``, ``attempt``: the work of the thread that logs, also where a function of yours
      that runs in the coordinator's process logs;
    - ``error``: ``Type: message`` of the exception that the record has, or names;
    - ``traceback``: of that exception; where a function of yours raised on a worker, its lines there come first;
    - ``progress``: of a line of progress its numbers, as an object.

    The formatter is to run in the thread that logs, as it does in every handler but a ``QueueHandler``.
    """

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "ts": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(_message(record)),
            **facts(),
        }
        for key in ("topology", "group", "txid", "attempt", "progress"):
            if key in record.__dict__:
                line[key] = record.__dict__[key]
        error = _error_of(record)
        if error is not None:
            line["error"] = _cut(f"{type(error).__name__}: {text_of(error)}")
            line["traceback"] = _cut(_traceback(error))
        elif record.stack_info:
            line["traceback"] = record.stack_info
        try:
            return json.dumps(line, default=_text, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, RecursionError):  # a program's own values that JSON has no notation for
            plain = {key: value if isinstance(value, (str, int)) else _text(value) for key, value in line.items()}
            return json.dumps(plain, ensure_ascii=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit, or one whose text raises
        return str(record.msg)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    """The exception that is logged, or that the message was made of."""
    if record.exc_info and record.exc_info[1] is not None:
        return record.exc_info[1]
    arguments = record.args if isinstance(record.args, tuple) else ()
    return next((one for one in arguments if isinstance(one, BaseException)), None)


def _traceback(error: BaseException) -> str:
    try:
        users = [text_of(one).strip() for one in causes(error) if type(one).__name__ == "UsersTraceback"]
        own = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return "\n\n".join([*users, own.rstrip()])
    except Exception:  # a cause whose text raises
        return f"{type(error).__name__}: its traceback cannot be shown"


def _cut(text: str) -> str:
    half = _TEXT_MAX // 2
    return text if len(text) <= _TEXT_MAX else f"{text[:half]}\n…\n{text[-half:]}"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"a value of type {type(value).__name__}"


class JsonHandler(logging.Handler):
    """Writes the lines to standard error; the one that :func:`install` made."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(record.name)
        # Told by its name, not imported: PySpark's own logger has written the record, as JSON of its kind.
        if type(logger).__name__ == "PySparkLogger" and logger.handlers:
            return
        try:
            # One write: lines of several threads stay apart. Looked up each time: a program may lead it away.
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            return  # a closed pipe: its reader has gone, and the topology goes on


_lock = threading.Lock()


def install() -> None:
    """Has every record of the process written so: the framework's from INFO, others from WARNING; may be called again.

    Handlers that the program has at the root logger stay beside it.
    """
    root = logging.getLogger()
    with _lock:
        if is_installed():
            return
        root.addHandler(JsonHandler())
    logging.captureWarnings(True)
    own = logging.getLogger("trident")
    if own.level == logging.NOTSET:
        own.setLevel(logging.INFO)


def is_installed() -> bool:
    """Tells whether :func:`install` was called."""
    return any(isinstance(handler, JsonHandler) for handler in logging.getLogger().handlers)

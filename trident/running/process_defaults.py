"""Defaults of a process that has configured nothing: SIGTERM while it starts, and the printing of warnings."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trident.watching import json_logs

# SIGTERM while a topology starts: one line and exit code 143, where Python itself ends without a word.
#
# Of the standard library alone: the command line uses it before it imports PySpark.


log = logging.getLogger("trident.query")


class Terminated(SystemExit):
    """A signal ended the process before, or instead of, a stop in good order; nothing is lost.

    As an exit it runs the ``finally`` blocks on its way, and Python prints nothing of it.

    Args:
        number: the signal's; the exit code is 128 more, as a shell has it.
        said: the line that tells it.
    """

    def __init__(self, number: int, said: str) -> None:
        super().__init__(128 + number)
        if json_logs.is_installed():
            log.warning("%s", said)
        else:
            print(f"trident: {said}", file=sys.stderr, flush=True)


@contextmanager
def sigterm_ends(doing: str) -> Iterator[None]:
    """Within it SIGTERM raises :class:`Terminated` in the main thread; in another thread it changes nothing.

    Args:
        doing: what is ended, "the start of NAME".
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ends: list[Terminated] = []

    def on_signal(number: int, frame: object) -> None:
        if not ends:
            ends.append(Terminated(number, f"{doing} was ended by {signal.Signals(number).name}"))
        raise ends[0]

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
        if ends:  # it was lost in a callback whose errors Python ignores
            raise ends[0]
    except Exception:
        if ends:  # the JVM of the same group was ended with it
            raise ends[0] from None
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


# Prints warnings and errors in a process that has not configured logging.
#
# Python's own last resort prints the bare message. A line of a process that runs
# for months says when, how bad and, in the message, of which topology. As soon as the
# program configures logging (any handler at the root), this one is silent.


_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class LastResort(logging.Handler):
    """Prints to standard error, unless the program has a handler of its own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(_FORMAT)

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self and not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        try:
            # Looked up each time: a display leads it around its own line.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def install(verbose: bool = False) -> None:
    """Makes the loggers of this package use it; may be called again.

    Args:
        verbose: also what Spark says of a failure, pages of Java.
    """
    logger = logging.getLogger("trident")
    found = next((handler for handler in logger.handlers if isinstance(handler, LastResort)), None)
    if found is None:
        found = LastResort()
        logger.addHandler(found)
    if verbose:
        found.setLevel(logging.DEBUG)
        logging.getLogger("trident.failures").setLevel(logging.DEBUG)

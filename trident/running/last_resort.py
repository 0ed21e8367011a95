"""Prints warnings and errors in a process that has not configured logging.

Python's own last resort prints the bare message. A line of a process that runs
for months says when, how bad and, in the message, of which topology. As soon as the
program configures logging (any handler at the root), this one is silent.
"""

from __future__ import annotations

import logging
import sys

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

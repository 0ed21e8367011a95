"""The time in which a JVM starts: this process imports then what it will need behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext, java_gateway

log = logging.getLogger(__name__)
_waiting: list[Callable[[], object]] = []


def while_the_jvm_starts(imports: Callable[[], object]) -> None:
    """Asks for a call of a function in the time in which PySpark waits for its JVM; where one runs already, for none.

    Args:
        imports: only imports, so that it does not matter whether it is called.
    """
    _waiting.append(imports)


@contextmanager
def imports_meanwhile() -> Iterator[None]:
    """Within it, the thread that starts the JVM imports, where PySpark would sleep until the JVM answers.

    In that thread and no other: of two that import modules with circles, one may find a module half made. And behind
    the start of the JVM's process: a fork must not find a lock held.
    """
    module: Any = java_gateway
    start = getattr(module, "Popen", None)
    if SparkContext._gateway is not None or start is None:
        yield
        return

    def started(*args: Any, **named: Any) -> Any:
        process = start(*args, **named)
        while _waiting:
            try:
                _waiting.pop()()
            except Exception as error:  # it is met again where the module is needed
                log.debug("an import while the JVM starts has failed: %s", error)
        return process

    module.Popen = started
    try:
        yield
    finally:
        module.Popen = start

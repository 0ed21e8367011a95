"""The time in which a JVM starts: this process imports then what it will need behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import py4j.java_gateway
from pyspark import SparkContext, java_gateway

log = logging.getLogger(__name__)
_waiting: list[Callable[[], object]] = []

# By mistake py4j tells a command that was interrupted, or that met no JVM, to the root of all logging: a page on
# standard error, and the program's logging counts as configured from then on. Its own logger is what it means.
_py4j: Any = py4j.java_gateway
_py4j.logging = _py4j.logger


def run_during_jvm_start(imports: Callable[[], object]) -> None:
    """Has a function called while PySpark waits for its JVM; it is not called where one runs already.

    Args:
        imports: only imports, so that it does not matter whether it is called.
    """
    _waiting.append(imports)


@contextmanager
def importing_during_jvm_start() -> Iterator[None]:
    """Within it, the thread that starts the JVM imports, where PySpark would sleep until the JVM answers.

    In that thread and no other: of two that import modules with circles, one may find a module half made. And behind
    the start of the JVM's process: a fork must not find a lock held.

    The JVM gets a session of its own: a signal to all processes of this one's group (a terminal's Ctrl-C, ``timeout``,
    ``kill -- -PGID``) reaches this process alone, which stops in good order and then ends the JVM. It ends with this
    process in any case: PySpark holds a pipe to it.
    """
    module: Any = java_gateway
    start = getattr(module, "Popen", None)
    if SparkContext._gateway is not None or start is None:
        yield
        return

    jvms: list[Any] = []

    def started(*args: Any, **named: Any) -> Any:
        process = start(*args, **{"start_new_session": True, **named})
        jvms.append(process)
        while _waiting:
            try:
                _waiting.pop()()
            except Exception as error:  # it is met again where the module is needed
                log.debug("an import while the JVM starts has failed: %s", error)
        return process

    module.Popen = started
    try:
        yield
    except BaseException:
        # Interrupted before it has answered: its folder is gone by now, of which it would print a page.
        if SparkContext._gateway is None:
            for process in jvms:
                process.kill()
        raise
    finally:
        module.Popen = start

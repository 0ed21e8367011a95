"""The small jar behind kept plans (its sources are in ``java/``): where it lies, and how a session gets it.

Sessions that the framework configures have it on their class path. One that the user gives is handed it while it runs;
where that fails, every plan is made anew for each batch, which is slower and gives the same.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trident.states.core import own_jar

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)
_CLASS = "trident.kept.KeptPlan"
_found: "WeakKeyDictionary[SparkContext, Any]" = WeakKeyDictionary()


def jar_path() -> Path:
    return Path(__file__).with_name("kept-plans.jar")


def jars() -> list[str]:
    """The path of the jar; none where it is not there, as in a checkout without it."""
    return [str(jar_path())] if jar_path().exists() else []


def kept_plan_class(context: "SparkContext") -> Any | None:
    """The Java class ``KeptPlan`` in a context's JVM, looked for once; None: it is not there, or does not fit."""
    if not own_jar.fits(context):
        return None
    if context not in _found:
        _found[context] = _find(context)
    return _found[context]


def _find(context: "SparkContext") -> Any | None:
    jvm: Any = context._jvm
    try:
        if not _is_there(jvm) and jars():
            context._jsc.addJar(jars()[0])  # for the tasks
            jvm.PythonSQLUtils.addJarToCurrentClassLoader(jars()[0])
        if _is_there(jvm):
            return jvm.trident.kept.KeptPlan
    except Exception as error:  # py4j's, of many kinds: a JVM that forbids it is as good as one without the jar
        log.info("the jar of kept plans cannot be added to this session: %s", error)
    return None


def _is_there(jvm: Any) -> bool:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_CLASS, True, loader)
    except Exception:  # py4j's, in which the Java exception is wrapped
        return False
    return True

"""Spark jobs of the framework: their FAIR pools, their local properties, and the jar that speeds up their plans."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from trident.coordinators.tracebacks import first_line, search_causes

if TYPE_CHECKING:
    from pyspark import SparkContext


# The FAIR pools that Spark's jobs of requests, of batches and of upkeep run in.
#
# Of pools that have as many tasks running Spark's scheduler takes the one whose name comes first. With fewer cores than
# batches in flight that is so at almost every free core: were the batches first, a request would wait for as long as
# there are batches. So the names are in this order: requests, batches, upkeep, which may wait for both.


REQUESTS = "trident-drpc"
UPKEEP = "trident-upkeep"


def of_batch(txid: int) -> str:
    """The pool of a transaction's jobs: one for each that may be in flight, between the two others in the alphabet."""
    return f"trident-txid-{txid % 16}"


# Properties of the Spark jobs that a thread starts while a block runs.


@contextmanager
def local_properties(context: "SparkContext", values: Mapping[str, str]) -> Iterator[None]:
    """Sets them for this thread, and puts back what was set before."""
    before = {key: context.getLocalProperty(key) for key in values}
    properties: Any = context  # by its types PySpark takes no None, which removes a property
    try:
        for key, value in values.items():
            properties.setLocalProperty(key, value)
        yield
    finally:
        for key, earlier in before.items():
            properties.setLocalProperty(key, earlier)


# The jar of this framework in a Spark session: it speeds up plans, and nothing depends on it but time.
#
# It is compiled against one version of Spark, and calls what Spark does not promise to keep. In a JVM that it does not
# fit each such call ends in a LinkageError, which Java finds only when the code in question runs: then the session
# counts
# as one without the jar, in whatever part of the framework that was found.


log = logging.getLogger(__name__)
_LINKAGE = re.compile(
    r"java\.lang\.(?:NoSuchMethodError|NoSuchFieldError|IncompatibleClassChangeError|AbstractMethodError|"
    r"IllegalAccessError|NoClassDefFoundError|ClassFormatError|UnsupportedClassVersionError|VerifyError|"
    r"BootstrapMethodError|LinkageError|ExceptionInInitializerError)\b"
)
_unfit: "WeakSet[SparkContext]" = WeakSet()


def fits(context: "SparkContext") -> bool:
    """Tells whether no call into the jar has failed yet since it does not fit the session's JVM."""
    return context not in _unfit


def does_not_fit(context: "SparkContext", error: BaseException) -> bool:
    """Tells whether a call failed since the jar does not fit: the caller does without it, and the log says so once."""
    if search_causes(error, _LINKAGE) is None:
        return False
    if fits(context):
        _unfit.add(context)
        log.warning(
            "the jar of kept plans does not fit this session's Spark %s, and is used no more: batches, requests and "
            "reads take longer, with the same results; install PySpark and this framework in versions that belong "
            "together: %s",
            context.version,
            first_line(error),
        )
    return True

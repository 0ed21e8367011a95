"""The jar of this framework in a Spark session: it speeds up plans, and nothing depends on it but time.

It is compiled against one version of Spark, and calls what Spark does not promise to keep. In a JVM that it does not
fit each such call ends in a LinkageError, which Java finds only when the code in question runs: then the session counts
as one without the jar, in whatever part of the framework that was found.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING
from weakref import WeakSet

from trident.coordinators.causes import first_line, search_causes

if TYPE_CHECKING:
    from pyspark import SparkContext

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

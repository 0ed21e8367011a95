"""Says what Spark's JVM prints, where the user has no log4j configuration of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trident.spark.jars import cache_folder
from trident.states.core import storage

# A task that fails is told by the error of its job, which names the user's function and line. The loggers turned
# off here print pages of Java about the same, and more when the driver process is killed.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
logger.tasks.name = org.apache.spark.TaskContextImpl
logger.tasks.level = off
logger.merge.name = org.apache.spark.sql.delta.commands.MergeIntoCommand
logger.merge.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def has_own_log4j() -> bool:
    conf = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    return any(os.path.exists(os.path.join(conf, name)) for name in ("log4j2.properties", "log4j2.xml"))


def log4j_file() -> Path:
    try:
        path = cache_folder() / "log4j2.properties"
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="trident-"), "log4j2.properties")
    if not path.exists() or path.read_text(encoding="utf-8") != _LOG4J:
        storage.write(path, _LOG4J.encode(), durable=False)
    return path

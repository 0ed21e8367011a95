"""Uploads of large files whose sender has died: their parts cost space, and no listing shows them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from trident.states.core.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A file is sent within minutes. After so long the process that sent it is gone, whichever it was.
LEFT_AFTER_SECS = 24 * 3600.0

_log = logging.getLogger(__name__)


def drop_left_uploads(warehouse: Place, spark: SparkSession, left_after_secs: float = LEFT_AFTER_SECS) -> int:
    """Aborts uploads below a warehouse on S3 that were begun long ago and never ended; others are left alone.

    A failure, such as the right to list uploads that this process lacks, is logged and costs nothing but the space.
    Nothing is looked for where the warehouse is the root of a bucket: an upload there may be of any application.

    Returns:
        how many there were.
    """
    prefix = str(warehouse)[len(warehouse.root) + 1 :]
    if not warehouse.root.startswith("s3a:") or not prefix:
        return 0
    jvm: Any = spark._jvm
    limit_ms = (time.time() - left_after_secs) * 1000
    dropped = 0
    try:
        hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        files = jvm.org.apache.hadoop.fs.Path(str(warehouse)).getFileSystem(hadoop)
        uploads = files.listUploads(f"{prefix}/")
        while uploads.hasNext():
            upload = uploads.next()
            if upload.initiated().toEpochMilli() < limit_ms:
                files.abortMultipartUpload(upload)
                dropped += 1
    except Py4JError as error:
        _log.info("uploads below %s that were left behind cannot be looked for: %s", warehouse, error)
    if dropped:
        _log.info("aborted %d uploads below %s that were never ended", dropped, warehouse)
    return dropped

"""The Spark session that all tests of one process share.

The conftest makes them known: ``pytest_plugins = [..., "tests.jvm.spark_fixtures"]``.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession

from tests.jvm.jvm_options import session_options
from tests.servers import store_servers
from trident.spark.session import make_session


@functools.lru_cache(maxsize=1)
def shared_session() -> SparkSession:
    """The one session, made when a test first needs it; its JVM ends with the process."""
    return make_session("tests", spark_confs(_folder()))


def spark_confs(folder: str) -> dict[str, str]:
    """Spark settings of the tests: two cores, everything in one folder."""
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": session_options(),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        "spark.ui.enabled": "false",
        # Batches of few rows: compiling a plan to bytecode takes longer than interpreting it. Tests that run a
        # process of their own, the benchmarks' among them, have Spark as it is.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Planning a stage anew once its input is there takes an eighth of a small batch's time; on in
        # tests/streams/test_stream_operations.py, whose subject it is, and in processes of their own.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        **(
            store_servers.spark_settings(store_servers.running(store))
            if (store := store_servers.chosen()) != "disk"
            else {}
        ),
    }


@functools.lru_cache(maxsize=1)
def _folder() -> str:
    return tempfile.mkdtemp(prefix="trident-tests-")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The shared session: local[2], FAIR, no UI, its warehouse in a temporary folder.

    Tests must not stop it: the tests after them use it too.
    """
    yield shared_session()


@pytest.fixture(scope="session", autouse=True)
def _remove_folder() -> Iterator[None]:
    yield
    shutil.rmtree(_folder(), ignore_errors=True)


@contextmanager
def calls_to_the_jvm() -> Iterator[list[str]]:
    """The commands that this thread sends to the JVM."""
    found: list[str] = []
    send, here = ClientServerConnection.send_command, threading.get_ident()

    def counted(self: ClientServerConnection, command: str, *args: object) -> str:
        if threading.get_ident() == here:
            found.append(command)
        return send(self, command, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", counted)
        yield found


@contextmanager
def session_confs(spark: SparkSession, confs: dict[str, str]) -> Iterator[None]:
    """The session with other settings, for a while."""
    before = {key: spark.conf.get(key, None) for key in confs}
    for key, value in confs.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)

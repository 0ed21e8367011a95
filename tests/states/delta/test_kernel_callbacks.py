"""Kernel calls a commit back into Python: also where a user's own callbacks share the way to the JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.java_gateway import ensure_callback_server_started
from trident.coordinators.errors import TableError
from trident.spark.session import make_session
from trident.states.delta.kernel import KernelEngine

SCHEMA = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
spark, path = make_session("callbacks"), sys.argv[1]
engine = KernelEngine(spark)
committed, called, new = (ThreadPoolExecutor(1) for _ in range(3))

def commit():
    snapshot = engine.load(path)
    return engine.commit_files(snapshot, [], None, {"trident": json.dumps({"at": snapshot.version})}, "x").version

properties = {"delta.enableInCommitTimestamps": "true"}  # so that Kernel writes every entry
committed.submit(engine.create_table, path, SCHEMA, [], properties, {"trident": "{}"}, "x").result()
called.submit(engine.load, path).result()
ensure_callback_server_started(spark.sparkContext._gateway)  # what foreachBatch and addListener do
for name, pool in (("committed", committed), ("called", called), ("new", new)):
    for _ in range(2):
        try:
            print(name, pool.submit(commit).result(), flush=True)
            break
        except TableError as error:  # py4j closes the connections of threads that were called back
            print(name, error, file=sys.stderr, flush=True)
    else:
        print(name, "cannot commit", flush=True)
try:
    print("main", commit(), flush=True)
except TableError as error:
    print("main", error, flush=True)
"""


@pytest.mark.long
def test_threads_commit_on_when_the_user_starts_a_callback_server(tmp_path: Path) -> None:
    """A stream's foreachBatch in the same session: from then on Java calls threads that were there back on others."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split("\n")[:-1] == ["committed 1", "called 2", "new 3", "main 4"], done.stderr[-3000:]

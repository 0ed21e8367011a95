"""Stores that the tests share: an S3 server (moto, behind a lock: see s3_server.py) and HDFS."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest

from trident.coordinators.errors import EnvironmentProblem
from trident.spark import stores
from trident.spark.jars import resolved_jars
from trident.states.core import storage


@cache
def running(kind: str) -> str:
    """The URL of a store of this kind, which this process has started and ends when it ends."""
    return {"s3": _s3, "hdfs": _hdfs}[kind]()


def _s3() -> str:
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.s3_server", str(port)],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(server.kill)
    endpoint = f"http://127.0.0.1:{port}"
    while True:
        try:
            make_bucket(endpoint, "lake")
            break
        except OSError:
            if server.poll() is not None:
                raise
            time.sleep(0.1)
    storage.configure("s3a://lake", s3_settings(endpoint))
    return "s3a://lake/tests"


def s3_settings(endpoint: str) -> dict[str, str]:
    """How a server of the tests is reached, in Hadoop's words."""
    return {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": "a",
        "fs.s3a.secret.key": "b",
        "fs.s3a.path.style.access": "true",
    }


# The connection ends before the server is asked, behind what it did, in the midst of the request, or of the answer.
# A request that is held is lost until it is delivered.
LOSE_REQUEST, LOSE_ANSWER, CUT_BODY, CUT_ANSWER = "lose request", "lose answer", "cut body", "cut answer"
HOLD_REQUEST = "hold request"
Fault = str | tuple[int, str] | None
# So long a request waits for the others of its round, which are on their way.
_ROUND_SECS = 60.0


class Proxy:
    """Stands before an S3 server: counts requests, and lets happen what a network or another server may do.

    Attributes:
        endpoint: where it listens.
        requests: (method, path) of each.
        delay_secs: of each answer.
        ignores_conditions: as a server that does not know ``If-None-Match``.
        loses_answers: of so many PUTs from now on the server does what is asked, and the connection ends.
        answers: what is answered in place of the server, by method: status, and the error's code.
        planned: faults of the next requests of a method, each of one request, in their order: see :meth:`plan`.
        rounds: requests that are expected one round after the other, as (method, end of the path). Those of a round are
            answered once all of them have come: a process that sends one behind the other's answer waits in vain.
        waited_in_vain: requests of a round that did not become complete.
    """

    def __init__(self, server: str, port: int = 0) -> None:
        self.requests: list[tuple[str, str]] = []
        self.delay_secs = 0.0
        self.ignores_conditions = False
        self.loses_answers = 0
        self.answers: dict[str, tuple[int, str]] = {}
        self.planned: dict[str, list[Fault]] = {}
        self.rounds: list[list[tuple[str, str]]] = []
        self.waited_in_vain: list[tuple[str, str]] = []
        self._in_round = threading.Condition()
        self._held: list[tuple[str, str, bytes, dict[str, str]]] = []
        self._host = host = server.partition("://")[2]
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                fault = proxy._next(self.command)
                if fault == CUT_BODY:
                    self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
                    proxy.requests.append((self.command, self.path))
                    self.cut()
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                time.sleep(proxy.delay_secs)
                proxy._meet(self.command, self.path)
                if fault == HOLD_REQUEST:
                    proxy._held.append((self.command, self.path, body, dict(self.headers.items())))
                if fault in (LOSE_REQUEST, HOLD_REQUEST):
                    self.cut()
                    return
                if refused := fault if isinstance(fault, tuple) else proxy.answers.get(self.command):
                    self.answer(refused[0], {}, f"<Error><Code>{refused[1]}</Code></Error>".encode())
                    return
                dropped = {"host", "connection"} | ({"if-none-match"} if proxy.ignores_conditions else set())
                headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
                connection = http.client.HTTPConnection(host, timeout=30)
                connection.request(self.command, self.path, body, headers)
                got = connection.getresponse()
                content = got.read()
                connection.close()
                if self.command == "PUT" and proxy.loses_answers > 0:
                    proxy.loses_answers -= 1
                    fault = LOSE_ANSWER
                if fault == LOSE_ANSWER:
                    self.cut()
                    return
                self.answer(got.status, dict(got.getheaders()), content, cut=fault == CUT_ANSWER)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def cut(self) -> None:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()  # a reset: what was not read is no reason to wait

            def answer(self, status: int, headers: dict[str, str], content: bytes, cut: bool = False) -> None:
                self.send_response_only(status)
                length = headers.get("Content-Length") if self.command == "HEAD" else None
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[: len(content) // 2] if cut else content)
                if cut:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def plan(self, method: str, *faults: Fault) -> None:
        """Lets these happen to the next requests of a method, one to each; requests behind them pass.

        Args:
            faults: ``LOSE_REQUEST``, ``HOLD_REQUEST``, ``LOSE_ANSWER``, ``CUT_BODY``, ``CUT_ANSWER``, a (status, code)
                that is answered in place of the server, or None, of which nothing happens.
        """
        self.planned[method] = list(faults)

    def deliver(self) -> int:
        """Lets the server have the request that was held; returns its status."""
        (held,) = self._held
        self._held.clear()
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request(*held)
        status = connection.getresponse().status
        connection.close()
        return status

    def _next(self, method: str) -> Fault:
        left = self.planned.get(method)
        return left.pop(0) if left else None

    def _meet(self, method: str, path: str) -> None:
        """Where a request is one of the round's, waits until the others of the round have come."""
        with self._in_round:
            mine = self.rounds[0] if self.rounds else []
            expected = next((each for each in mine if each[0] == method and path.endswith(each[1])), None)
            if expected is None:
                return
            mine.remove(expected)
            if not mine:
                self.rounds.pop(0)
                self._in_round.notify_all()
            elif not self._in_round.wait_for(lambda: not mine, _ROUND_SECS):
                self.waited_in_vain.append((method, path))

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def before_bucket(bucket: str) -> Iterator[Proxy]:
    """A proxy before the S3 server, with a bucket that this process reaches through it alone."""
    proxy = Proxy(s3_endpoint())
    make_bucket(proxy.endpoint, bucket)
    storage.configure(f"s3a://{bucket}", s3_settings(proxy.endpoint))
    proxy.requests.clear()
    try:
        yield proxy
    finally:
        storage.configure(f"s3a://{bucket}", {})
        proxy.end()


def chosen() -> str:
    """The kind of store that the long tests run on: ``disk``, ``s3`` or ``hdfs``, as ``make sweep STORE=s3`` says."""
    return os.environ.get("TRIDENT_STORE") or "disk"


def warehouse_in(kind: str, folder: Path) -> str:
    """A warehouse that no other test has, in a store of this kind or below a folder of this disk."""
    return str(folder / "warehouse") if kind == "disk" else f"{running(kind)}/{uuid.uuid4().hex[:8]}/warehouse"


def spark_settings(warehouse: str) -> dict[str, str]:
    """By which a Spark session of the tests reaches a warehouse."""
    if is_local(warehouse):
        return {}
    root = "/".join(warehouse.split("/")[:3])
    given = {f"spark.hadoop.{key}": value for key, value in storage.settings_of(root).items()}
    return {stores.STORE: root.partition("://")[0], **given}


def is_local(root: str) -> bool:
    return "://" not in root


def s3_endpoint() -> str:
    """Where the S3 server of this process is."""
    running("s3")
    return storage.settings_of("s3a://lake")["fs.s3a.endpoint"]


def make_bucket(endpoint: str, name: str) -> None:
    made = urllib.request.Request(f"{endpoint}/{name}", method="PUT", headers={"Authorization": "AWS a/b"})
    urllib.request.urlopen(made, timeout=5)


def _hdfs() -> str:
    """A name node and data nodes on ports of the loopback interface.

    Their jars come from Spark's resolver; a machine on which it finds none skips the tests of HDFS.
    """
    try:
        jars = resolved_jars("HDFS", ["org.apache.hadoop:hadoop-client-minicluster:3.5.0"], _HDFS_GROUPS, {})
    except EnvironmentProblem as problem:
        pytest.skip(f"HDFS cannot be had here: {problem}")
    cluster = HdfsCluster(jars)
    atexit.register(cluster.end)
    storage.configure(cluster.url, {})
    hdfs_clusters.append(cluster)
    return f"{cluster.url}/tests"


hdfs_clusters: list[HdfsCluster] = []
_OF_DATA_NODES = ("SendHeartbeat", "BlockReceivedAndDeleted", "BlockReport", "VersionRequest", "RegisterDatanode")


# As many copies of each block: with one, no name node closes a file before its data node has reported the block.
_DATA_NODES = 2
_HDFS_GROUPS = ("org.apache.hadoop_", "commons-logging_", "com.google.code.findbugs_jsr305")


class HdfsCluster:
    """One name node and two data nodes, as processes of this machine."""

    def __init__(self, jars: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trident-hdfs-"))
        (self.folder / "conf").mkdir()
        names = ["rpc", "name-http"]
        ports = dict(zip(names, free_ports(len(names))))
        self.url = f"hdfs://127.0.0.1:{ports['rpc']}"
        self._name_http = f"127.0.0.1:{ports['name-http']}"
        settings = {
            "fs.defaultFS": self.url,
            "dfs.namenode.name.dir": f"file://{self.folder}/name",
            "dfs.replication": str(_DATA_NODES),
            "dfs.permissions.enabled": "true",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            # As docs/storage.md advises: else a client waits half a second for many a file's report.
            "dfs.namenode.file.close.num-committed-allowed": "1",
            "dfs.namenode.rpc-address": f"127.0.0.1:{ports['rpc']}",
            "dfs.namenode.http-address": f"127.0.0.1:{ports['name-http']}",
        }
        rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
        text = f"<configuration>{''.join(rows)}</configuration>"
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.folder / "conf" / name).write_text(text)
        # Else counts are up to ten seconds old.
        (self.folder / "conf" / "hadoop-metrics2.properties").write_text("*.period=1\n")
        spark = Path(pyspark.__file__).parent / "jars"
        of_spark = ("hadoop-client-", "log4j-", "slf4j-", "jcl-", "snappy-java-")
        found = sorted(str(each) for each in spark.iterdir() if each.name.startswith(of_spark))
        self._class_path = ":".join([str(self.folder / "conf"), *jars, *found])
        self._node("namenode.NameNode", "-format", "-nonInteractive").wait(120)
        self.start_name_node()
        self._data_ports = [free_ports(3) for _ in range(_DATA_NODES)]
        self.data_nodes = [self._data_node(number) for number in range(_DATA_NODES)]
        self.wait()

    def start_name_node(self) -> None:
        self.name_node = self._node("namenode.NameNode")

    def start_data_node(self, number: int) -> None:
        """Starts one again that was killed."""
        self.data_nodes[number] = self._data_node(number)

    def kill_data_nodes(self) -> None:
        for node in self.data_nodes:
            self.kill(node)

    def start_data_nodes(self) -> None:
        for number in range(_DATA_NODES):
            self.start_data_node(number)

    def _data_node(self, number: int) -> subprocess.Popen[bytes]:
        data, web, ipc = self._data_ports[number]
        own = {
            "dfs.datanode.data.dir": f"file://{self.folder}/data{number}",
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"127.0.0.1:{web}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
        }
        return self._node("datanode.DataNode", *(f"-D{name}={value}" for name, value in own.items()))

    @staticmethod
    def kill(node: subprocess.Popen[bytes]) -> None:
        """SIGKILL; start it again, and it has what it had."""
        node.kill()
        node.wait()

    def _node(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        main = f"org.apache.hadoop.hdfs.server.{name}"
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                ["java", *small, "-cp", self._class_path, main, *arguments], stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        """Until a file can be written: there is a name node out of its safe mode, and it knows all data nodes."""
        deadline, last = time.monotonic() + 120, None
        while True:
            try:
                if self._told("FSNamesystemState")["NumLiveDataNodes"] == _DATA_NODES:
                    storage.write(f"{self.url}/ready", b"1")
                    return
            except (OSError, ValueError) as error:  # it has no beans yet
                last = error
            ended = any(node.poll() is not None for node in (self.name_node, *self.data_nodes))
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"HDFS does not start; its logs are in {self.folder}") from last
            time.sleep(0.1)

    def calls(self) -> Counter[str]:
        """How often clients have called each operation of the name node since its start."""
        time.sleep(2.5)  # the name node's counts are up to a second old
        found = self._told("RpcDetailedActivityForPort*")
        calls = {name.removesuffix("NumOps"): count for name, count in found.items() if name.endswith("NumOps")}
        clients = (name for name in calls if not name.startswith("Overall") and name not in _OF_DATA_NODES)
        return Counter({name: calls[name] for name in clients})

    def _told(self, what: str) -> dict[str, Any]:
        """What the name node says of itself."""
        url = f"http://{self._name_http}/jmx?qry=Hadoop:service=NameNode,name={what}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            (found,) = json.load(answer)["beans"]
        return dict(found)

    def admin(self, *arguments: str) -> None:
        """Runs ``hdfs dfsadmin``."""
        main = "org.apache.hadoop.hdfs.tools.DFSAdmin"
        subprocess.run(
            ["java", "-cp", self._class_path, main, *arguments], check=True, capture_output=True, timeout=120
        )

    def end(self) -> None:
        for node in (*self.data_nodes, self.name_node):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":  # a process of its own before an S3 server: PORT ENDPOINT
    Proxy(sys.argv[2], int(sys.argv[1]))
    threading.Event().wait()

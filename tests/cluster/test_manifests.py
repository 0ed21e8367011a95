"""The Kubernetes manifest of docs/cluster.md, as far as it can be run without Kubernetes: the pods that Spark asks for.

A stub answers in the place of Kubernetes' API server and keeps what it is sent. No pod runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.servers.zk_fixtures import wait_for

pytestmark = pytest.mark.skipif(
    os.environ.get("TRIDENT_CLUSTER") != "all", reason="a session of its own; TRIDENT_CLUSTER=all runs it"
)
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from trident.config import as_config
from trident.spark.session import make_session, spark_settings
spark = make_session("wordcount", {**spark_settings(as_config(None)), "spark.driver.port": "0",
    "spark.blockManager.port": "0", "spark.driver.memory": "600m"})
print("started", flush=True)
sys.stdin.read()
"""


class ApiServer:
    """Says that the driver's pod is there, and takes everything that is to be made."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if "watch=true" in self.path:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    threading.Event().wait(60)
                elif self.path.partition("?")[0].endswith("/pods/wordcount-0"):
                    self.answer(pod("wordcount-0"))
                else:
                    self.answer({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                sent["metadata"].setdefault("uid", "u")
                sent["metadata"].setdefault("namespace", self.path.split("/namespaces/")[1].split("/")[0])
                api.made.append(sent)
                self.answer(sent)

            def do_DELETE(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

            do_PUT = do_PATCH = do_DELETE

            def answer(self, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def pod(name: str) -> dict[str, Any]:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    named = {"name": name, "namespace": "default", "uid": "u1", "resourceVersion": "1"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": named, "spec": {"containers": []}, "status": ready}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    made = ApiServer()
    yield made
    made.close()


def manifest() -> dict[str, Any]:
    """The parts of the page's manifest by kind."""
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return {part["kind"]: part for part in yaml.safe_load_all(block)}


def test_spark_asks_for_executor_pods_as_the_manifest_says(api: ApiServer, tmp_path: Path) -> None:
    parts = manifest()
    service, template = parts["Service"], parts["StatefulSet"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    settings = tmp_path / "trident.toml"
    written = parts["ConfigMap"]["data"]["trident.toml"]
    assert written.count("https://kubernetes.default.svc") == 1
    settings.write_text(written.replace("https://kubernetes.default.svc", api.url))
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given.pop("TRIDENT_SPARK__kubernetes__driver__pod__name") == "$(POD_NAME)"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TRIDENT_", "PYSPARK_"))},
        "PYTHONPATH": str(ROOT),
        "TRIDENT_SETTINGS": str(settings),
        "PYSPARK_PYTHON": given["PYSPARK_PYTHON"],
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TRIDENT_SPARK__kubernetes__driver__pod__name": "wordcount-0",
    }
    with (tmp_path / "said").open("wb") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=said, stderr=said
        )

    def asked() -> list[dict[str, Any]]:
        return [one for one in api.made if one["kind"] == "Pod"]

    try:
        wait_for(
            lambda: len(asked()) >= 2 or driver.poll() is not None, lambda: (tmp_path / "said").read_text()[-3000:]
        )
    finally:
        driver.kill()
        driver.wait()
    pods = asked()
    assert len(pods) >= 2, (tmp_path / "said").read_text()[-3000:]
    for one in pods:
        (executor,) = one["spec"]["containers"]
        assert executor["image"] == container["image"] and one["metadata"]["namespace"] == "default"
        (volume,) = [each for each in one["spec"]["volumes"] if each["name"] == "lake"]
        assert volume["persistentVolumeClaim"]["claimName"] == "lake"
        (mount,) = [each for each in executor["volumeMounts"] if each["name"] == "lake"]
        (drivers,) = [each for each in container["volumeMounts"] if each["name"] == "lake"]
        assert mount["mountPath"] == drivers["mountPath"] == "/shared"
        urls = [each["value"] for each in executor["env"] if each["name"] == "SPARK_DRIVER_URL"]
        assert urls and f"@{service['metadata']['name']}:" in urls[0]
        assert [owner["name"] for owner in one["metadata"]["ownerReferences"]] == ["wordcount-0"]

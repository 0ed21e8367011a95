"""What tests of metrics share: events, facts, and a Prometheus server of Debian's package."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.servers.redis_fixtures import apt_install
from tests.servers.zk_fixtures import wait_for
from trident.coordinators.embedded_server import LoopbackPort
from trident.watching.events import Advanced, Began, Failed

NAMED = {"topology": "t", "incarnation": "i", "run_id": "r"}


def began(txid: int, attempt_id: int = 0) -> Began:
    return Began(**NAMED, group="g", txid=txid, attempt_id=attempt_id)


def failed(txid: int, error: BaseException, part: str = "processing") -> Failed:
    return Failed(**NAMED, group="g", txid=txid, attempt_id=0, part=part, error=error)


def advanced(txid: int, at: float = 1000.0, published: bool = True, recovered: bool = False) -> Advanced:
    durations = {"begin": 2.0, "process": 20.0, "resolve_by_pass": 1.0, "total": 30.0}
    progress = {"num_input_rows": 10, "duration_ms": durations, "states": {"counts": 4}}
    return Advanced(
        **NAMED,
        at=at,
        group="g",
        txid=txid,
        attempt_id=0,
        progress=progress,
        published=published,
        recovered=recovered,
        written_bytes={"counts": 700},
    )


def require_prometheus() -> None:
    """Skips the test, loudly, where Prometheus is not there and cannot be installed."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return
    problem = apt_install("prometheus")
    if problem or not shutil.which("promtool"):
        pytest.skip(
            f"NOT TESTED: metrics with a Prometheus server. There is none: {problem}. Do: apt-get install prometheus"
        )


class Prometheus:
    """A server that scrapes one address, and evaluates rules, five times a second."""

    def __init__(self, folder: Path, target: str, rules: str, token: str) -> None:
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\n"
            "rule_files: [rules.yml]\n"
            f"scrape_configs:\n- job_name: trident\n  authorization: {{credentials: {token}}}\n"
            f"  static_configs: [{{targets: ['{target}']}}]\n"
        )
        self._log = (folder / "log").open("w")
        self._reserved = LoopbackPort()
        self.address = f"127.0.0.1:{self._reserved.number}"
        arguments = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        arguments += [f"--web.listen-address={self.address}"]
        self._process = subprocess.Popen(["prometheus", *arguments], stdout=self._log, stderr=self._log)

    def query(self, text: str) -> list[dict[str, Any]]:
        """The samples that a query gives; none while the server begins."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return []

    def until(self, text: str, secs: float = 90.0) -> list[dict[str, Any]]:
        """The samples of a query once there are any."""
        return wait_for(lambda: self.query(text), lambda: f"no answer to {text}", secs)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

"""Each alert fires on what it is for, and is quiet before: Prometheus' own ``promtool`` runs the rules over series."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.pages.made import alert_rules
from tests.watching.metric_helpers import require_prometheus

TESTS = Path(__file__).with_name("alert_tests.yml")


def test_each_alert_has_a_test_and_words_for_a_person() -> None:
    rules = alert_rules()
    tested = [
        one["alertname"] for test in yaml.safe_load(TESTS.read_text())["tests"] for one in test["alert_rule_test"]
    ]
    assert sorted(tested) == sorted([rule["alert"] for rule in rules] * 2), "before it fires, and when it does"
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_fires_on_its_fault_and_not_before(tmp_path: Path) -> None:
    require_prometheus()
    # promtool compares the annotations too, whose words are for people: the rules are run without them.
    rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in alert_rules()]
    (tmp_path / "alerts.yml").write_text(json.dumps({"groups": [{"name": "trident", "rules": rules}]}))
    command = ["promtool", "test", "rules", shutil.copy(TESTS, tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr

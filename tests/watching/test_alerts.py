"""Each alert fires on what it is for, and is quiet before: Prometheus' own ``promtool`` runs the rules over series."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.pages.made import alert_rules
from tests.watching.metric_helpers import require_prometheus

_T = 'topology="t"'
_G = f'{_T},group="g"'
_S = f'{_G},state="counts"'


def _slow(name: str, labels: str, bound: str) -> dict[str, str]:
    """A histogram all of whose values are above a bound."""
    made = {f'{name}_bucket{{{labels},le="{le}"}}': "0+0x60" for le in ("0.1", bound)}
    return made | {f'{name}_bucket{{{labels},le="{le}"}}': "0+60x60" for le in ("10.0", "+Inf")}


# Alert → series (values a minute, from minute 0 on; the tests of Prometheus explain their notation), the labels that
# it has when it fires, the minute at which it does, and one before at which it does not.
CASES: dict[str, tuple[dict[str, str], dict[str, str], int, int]] = {
    "TridentProcessDown": (
        {'up{job="trident",instance="a:1"}': "1x5 0x10"},
        {"job": "trident", "instance": "a:1"},
        9,
        5,
    ),
    "TridentNoLeader": (
        {
            f'trident_role{{{_T},role="leader",instance="a"}}': "1x5 0x10",
            f'trident_role{{{_T},role="leader",instance="b"}}': "0x15",
        },
        {"topology": "t"},
        9,
        5,
    ),
    "TridentTakeovers": ({f"trident_epoch{{{_T}}}": "3x60 4x5 5x5 6x5 7x5 9x5"}, {"topology": "t"}, 85, 62),
    "TridentTransactionFails": (
        {f"trident_transaction_failures{{{_G}}}": "0 1 1 2x5"},
        {"topology": "t", "group": "g"},
        4,
        2,
    ),
    "TridentFailures": (
        {f'trident_failures_total{{{_G},part="publish",kind="OSError"}}': "0x20 2+2x20"},
        {"topology": "t", "group": "g", "part": "publish"},
        35,
        20,
    ),
    "TridentStuck": (
        {
            f"trident_backlog_age_seconds{{{_G}}}": "0+60x20",
            f"trident_last_advance_timestamp_seconds{{{_G}}}": "0+60x10 600x10",
        },
        {"topology": "t", "group": "g"},
        18,
        10,
    ),
    "TridentBacklogStays": (
        {f"trident_backlog_age_seconds{{{_G}}}": "0+60x90"},
        {"topology": "t", "group": "g"},
        65,
        55,
    ),
    "TridentSourceFails": (
        {f"trident_source_failing_seconds{{{_G}}}": "0+60x9"},
        {"topology": "t", "group": "g"},
        4,
        1,
    ),
    "TridentCommitsSlow": (
        _slow("trident_phase_duration_seconds", f'{_G},phase="publish"', "1.0"),
        {"topology": "t", "group": "g", "phase": "publish"},
        30,
        5,
    ),
    "TridentDeadLetters": ({f"trident_dead_letters{{{_G}}}": "0x70 1x70"}, {"topology": "t", "group": "g"}, 80, 65),
    "TridentMergeLags": (
        {f"trident_merge_lag_seconds{{{_S}}}": "0x5 0+60x40"},
        {"topology": "t", "group": "g", "state": "counts"},
        35,
        15,
    ),
    "TridentMergesFail": (
        {f"trident_merge_failures_total{{{_S}}}": "0x20 1+1x20"},
        {"topology": "t", "group": "g", "state": "counts"},
        30,
        20,
    ),
    "TridentOutsideWaits": (
        {f"trident_outside_waiting_seconds{{{_S}}}": "0+60x9"},
        {"topology": "t", "group": "g", "state": "counts"},
        7,
        3,
    ),
    "TridentZooKeeperAway": (
        {f'trident_zookeeper_connected{{{_T},instance="a"}}': "1x5 0x10"},
        {"topology": "t", "instance": "a"},
        8,
        5,
    ),
    "TridentZooKeeperSlow": (
        _slow("trident_zookeeper_request_duration_seconds", f'{_T},instance="a",operation="write"', "0.5"),
        {"topology": "t", "instance": "a"},
        30,
        5,
    ),
    "TridentDiskFull": (
        {f"trident_warehouse_free_bytes{{{_T}}}": "20x5 5x5", f"trident_warehouse_size_bytes{{{_T}}}": "100x10"},
        {"topology": "t"},
        8,
        4,
    ),
    "TridentHeapFull": (
        {
            f'trident_jvm_heap_used_bytes{{{_T},instance="a"}}': "50x5 99x30",
            f'trident_jvm_heap_max_bytes{{{_T},instance="a"}}': "100x40",
        },
        {"topology": "t", "instance": "a"},
        25,
        8,
    ),
    "TridentMetricsOld": (
        {f'trident_collected_timestamp_seconds{{{_T},instance="a",what="status"}}': "0+60x5 300x9"},
        {"topology": "t", "instance": "a"},
        9,
        5,
    ),
}


def test_each_alert_has_a_case_and_words_for_a_person() -> None:
    rules = alert_rules()
    assert {rule["alert"] for rule in rules} == set(CASES) and len(rules) == len(CASES)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_fires_on_its_fault_and_not_before(tmp_path: Path) -> None:
    require_prometheus()
    # promtool compares the annotations too, whose words are for people: the rules are run without them.
    rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in alert_rules()]
    (tmp_path / "alerts.yml").write_text(json.dumps({"groups": [{"name": "trident", "rules": rules}]}))
    tests: list[dict[str, Any]] = []
    for rule in rules:
        series, labels, fires, quiet = CASES[rule["alert"]]
        firing = [{"exp_labels": {**labels, **rule["labels"]}}]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": f"{quiet}m", "alertname": rule["alert"], "exp_alerts": []},
                    {"eval_time": f"{fires}m", "alertname": rule["alert"], "exp_alerts": firing},
                ],
            }
        )
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": tests}))
    command = ["promtool", "test", "rules", "tests.yml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr

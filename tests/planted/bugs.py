"""The planted bugs. Each is a patch, whose first lines say what must find it; see test_planted_bugs.py.

- ``Says:`` what the failure must be about (a regex).
- ``Found-by:`` a test that must fail, one a line. `make test` runs the first.
- ``Needs:`` what these run on: hypothesis, ZooKeeper or Spark; nothing, where the line is missing.
- ``Promised:`` the name of the bug, if it is one of the sixteen that the project promises to find.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PATCHES = Path(__file__).resolve().parent
# A suite, as docs/faults.md calls it: the files of its tests.
SUITES = {
    "compaction explorer": "compaction_explorer",
    "coordinator": "advice master_coordinator",
    "ZooKeeper": "group_store leadership zookeeper_state",
    "values and maps": "map_states user_tasks values",
    "local copies": "copy_rows host_copy local_copies local_copy shard_keys shards sorted_runs state_copy",
    "simulator": "simulator",
    "forms of the late part": "folds in_driver late_forms own_steps",
    "whole topologies": "late_at_once late_states",
    "Kafka": "kafka_answers kafka_consumer kafka_coordinator kafka_poison kafka_reader kafka_spout kafka_values",
    "taken over": "migrate",
    "time travel": "fork replay rollback",
    "states outside": "http_state kafka_state kafka_wire outside postgres",
    "merging and reading": "adoption change_feed compactor file_merge fitting history key_reads live_rows "
    "native_merge_files reading sequenced views",
    "stores": "few_requests place store_faults store_messages store_warehouses stores",
    "races": "kernel_races process_races",
    "cluster": "cluster one_host",
    "windows": "window_parts",
    "requests": "together",
    "publishing": "commit_rules committer evolution log_commit recorder staging torn_entries",
    "messages": "acker ledger message_executor settled_messages tracked_streams tuple_bolts",
    "queues": "queue_spout",
    "spouts": "changed_files debezium_values file_formats file_spout json_lines object_files spout_executors "
    "spout_host task_rows",
    "event time": "timed timed_rules",
    "kept plans": "kept_plans",
    "starting": "class_archive cli",
    "matrix": "matrix",
    "users' functions": "local_modules signatures typed_values types",
}
SUITE_OF = {f"test_{file}": suite for suite, files in SUITES.items() for file in files.split()}


class Caught(NamedTuple):
    """How a bug is found."""

    says: str
    tests: tuple[str, ...]
    needs: str
    promised: str

    @property
    def suites(self) -> set[str]:
        return {SUITE_OF[Path(test.split("::")[0]).stem] for test in self.tests}


def read(patch: Path) -> Caught:
    """What the lines above the diff say."""
    lines = [line.partition(": ")[::2] for line in patch.read_text().split("\n\n")[0].splitlines()]
    tests = tuple(value for field, value in lines if field == "Found-by")
    said = dict(lines)
    if not tests or not said.get("Says") or set(said) - {"Says", "Found-by", "Needs", "Promised"}:
        raise ValueError(f"{patch.name} must begin with lines Says: and Found-by: (see tests/planted/bugs.py)")
    return Caught(said["Says"], tests, said.get("Needs", "nothing"), said.get("Promised", ""))


PLANTED = {patch.stem: read(patch) for patch in sorted(PATCHES.glob("*.patch"))}

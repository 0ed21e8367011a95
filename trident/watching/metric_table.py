"""The table of all metrics: name, kind, unit, labels, meaning, and where the value is from.

Prometheus' instruments (``metrics.py``), OpenTelemetry's (``otel.py``) and docs/metrics.md are made from it. A
metric without ``read`` is filled by the events of the topology, on the thread where they happen; one with ``read`` is
read from facts that threads of the metrics' own have collected (``metric_facts.py``). Every metric has the label
``topology`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources

from trident.watching import metric_facts as reads
from trident.watching.metric_facts import Facts

Samples = Iterable[tuple[tuple[str, ...], float]]
SECONDS, BYTES = "seconds", "bytes"
# Of transactions and their phases: from a request to ZooKeeper to a batch that takes a minute.
_PHASE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_REQUEST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PHASES = (
    "begin",
    "emit",
    "plan",
    "stage",
    "process",
    "resolve",
    "prepare",
    "decide",
    "publish",
    "spout_commit",
    "advance",
    "total",
)


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as Prometheus has it: a counter's ends with ``_total``.
        kind: counter, gauge or histogram.
        unit: seconds, bytes; "" where things are counted.
        labels: beside ``topology``.
        about: a sentence for its reader.
        read: the samples from facts: of each the values of the labels, and the value. None: events fill it.
        buckets: of a histogram, upper bounds.
    """

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    about: str
    read: Callable[[Facts], Samples] | None = None
    buckets: tuple[float, ...] = ()


_GROUP, _STATE = ("group",), ("group", "state")
# Section → its metrics, in the order of docs/metrics.md.
SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Who leads": (
        Metric("trident_info", "gauge", "", ("version", "run_id"), "1; the labels say which run this is.", reads.info),
        Metric(
            "trident_role",
            "gauge",
            "",
            ("role",),
            "1 for the role that this process has (leader, standby, suspended: ZooKeeper is away; starting, running:"
            " the lease is taken and the groups are being opened; merging, stopped, failed, halted), 0 for the"
            " others.",
            reads.roles,
        ),
        Metric(
            "trident_epoch",
            "gauge",
            "",
            (),
            "The number of this process's last leadership; it grows with every leader. 0: it has not led.",
            reads.epoch,
        ),
        Metric("trident_takeovers_total", "counter", "", (), "How often this process has begun to lead."),
        Metric("trident_lost_leads_total", "counter", "", (), "How often it has ceased to lead."),
        Metric(
            "trident_zookeeper_connected",
            "gauge",
            "",
            (),
            "1 while ZooKeeper can be reached, else 0.",
            reads.zookeeper_connected,
        ),
        Metric(
            "trident_zookeeper_request_duration_seconds",
            "histogram",
            SECONDS,
            ("operation",),
            "The time of a request to ZooKeeper: read, or write (a multi).",
            buckets=_REQUEST_BUCKETS,
        ),
        Metric(
            "trident_zookeeper_failures_total",
            "counter",
            "",
            ("operation",),
            "Requests to ZooKeeper that raised: refused, or without an answer.",
        ),
    ),
    "Transactions": (
        Metric(
            "trident_transactions_total",
            "counter",
            "",
            ("group", "outcome"),
            "Transactions that have advanced: published; empty (nothing was to be changed); recovered (an earlier"
            " leader had decided it).",
        ),
        Metric(
            "trident_input_rows_total",
            "counter",
            "",
            _GROUP,
            "Rows read from spouts, by advanced transactions that this process has processed; absent from the first"
            " transaction on whose spouts do not say how many they were.",
        ),
        Metric(
            "trident_state_rows_total", "counter", "", _STATE, "Rows written for a state, by advanced transactions."
        ),
        Metric(
            "trident_state_written_bytes_total",
            "counter",
            BYTES,
            _STATE,
            "Bytes of the files staged for a state, by advanced transactions.",
        ),
        Metric(
            "trident_phase_duration_seconds",
            "histogram",
            SECONDS,
            ("group", "phase"),
            "The time of a phase: begin; emit, plan and stage, which process is made of; resolve, a part of prepare;"
            " decide, publish, spout_commit, advance; total.",
            buckets=_PHASE_BUCKETS,
        ),
        Metric("trident_attempts_total", "counter", "", _GROUP, "Attempts that have begun."),
        Metric(
            "trident_replays_total",
            "counter",
            "",
            _GROUP,
            "Attempts at a transaction that this leadership had begun before.",
        ),
        Metric(
            "trident_failures_total",
            "counter",
            "",
            ("group", "part", "kind"),
            "Failures by part (processing; ready: a call of a spout's is_ready; decide, publish, spout_commit, advance:"
            " tried again) and by class of the error.",
        ),
        Metric(
            "trident_current_txid",
            "gauge",
            "",
            _GROUP,
            "The transaction to be committed next.",
            reads.current_txid,
        ),
        Metric(
            "trident_last_advance_timestamp_seconds",
            "gauge",
            SECONDS,
            _GROUP,
            "When a transaction last advanced, or this leadership began; seconds since the epoch.",
            reads.last_advance,
        ),
        Metric(
            "trident_in_flight",
            "gauge",
            "",
            ("group", "phase"),
            "Attempts in flight: processing, processed, committing.",
            reads.in_flight,
        ),
        Metric(
            "trident_oldest_attempt_age_seconds",
            "gauge",
            SECONDS,
            _GROUP,
            "How long the oldest attempt in flight has run; 0: none is.",
            reads.oldest_attempt,
        ),
        Metric(
            "trident_transaction_failures",
            "gauge",
            "",
            _GROUP,
            "The most failures of a transaction that has not advanced. The topology stops at `max_attempts`, and at"
            " three in a row that are the same failure of a user's function or of a source's data.",
            reads.failures,
        ),
        Metric(
            "trident_group_mode",
            "gauge",
            "",
            ("group", "mode"),
            "1 for the mode of the batch group: running, paused, suspended, recovering, stopping, stopped, gave up,"
            " deposed, halted.",
            reads.modes,
        ),
    ),
    "Sources": (
        Metric(
            "trident_backlog_rows",
            "gauge",
            "",
            _GROUP,
            "Rows that wait at the sources; absent where one of them does not know. Of text, CSV and JSON files they"
            " are estimated from bytes.",
            reads.backlog("rows"),
        ),
        Metric(
            "trident_backlog_bytes", "gauge", BYTES, _GROUP, "Bytes that wait there; or absent.", reads.backlog("bytes")
        ),
        Metric(
            "trident_backlog_files", "gauge", "", _GROUP, "Files that wait there; or absent.", reads.backlog("files")
        ),
        Metric(
            "trident_backlog_age_seconds",
            "gauge",
            SECONDS,
            _GROUP,
            "How long something has waited at the sources without a break; 0: nothing waits.",
            reads.backlog_age,
        ),
        Metric(
            "trident_source_failing_seconds",
            "gauge",
            SECONDS,
            _GROUP,
            "How long every call of a spout has raised; 0: they do not.",
            reads.source_failing,
        ),
        Metric(
            "trident_dead_letters",
            "gauge",
            "",
            _GROUP,
            "Messages that were given up and transactions that were skipped: rows of the table of dead letters.",
            reads.dead_letters,
        ),
    ),
    "States": (
        Metric(
            "trident_merge_lag_transactions",
            "gauge",
            "",
            _STATE,
            "Transactions that have advanced and are not in the plain table yet.",
            reads.merge_lag_transactions,
        ),
        Metric(
            "trident_merge_lag_seconds",
            "gauge",
            SECONDS,
            _STATE,
            "How long ago the oldest of these advanced.",
            reads.merge_lag_secs,
        ),
        Metric("trident_merges_total", "counter", "", _STATE, "MERGEs of this leadership.", reads.merges),
        Metric(
            "trident_merge_seconds_total", "counter", SECONDS, _STATE, "The time that these took.", reads.merge_secs
        ),
        Metric("trident_merge_failures_total", "counter", "", _STATE, "MERGEs that failed.", reads.merge_failures),
        Metric(
            "trident_view_lag_transactions",
            "gauge",
            "",
            _GROUP,
            "Transactions that the newest view (`trident.view`) does not have yet.",
            reads.view_lag_transactions,
        ),
        Metric(
            "trident_view_lag_seconds",
            "gauge",
            SECONDS,
            _GROUP,
            "How long ago the oldest of these advanced.",
            reads.view_lag_secs,
        ),
        Metric(
            "trident_table_bytes",
            "gauge",
            BYTES,
            ("group", "state", "table"),
            "The live files of a state's table: plain, or log.",
            reads.table_bytes,
        ),
        Metric(
            "trident_table_files",
            "gauge",
            "",
            ("group", "state", "table"),
            "How many files these are.",
            reads.table_files,
        ),
        Metric(
            "trident_local_copy_following",
            "gauge",
            "",
            _STATE,
            "1 while the local copy follows the transactions, else 0.",
            reads.copy_following,
        ),
        Metric(
            "trident_local_copy_bytes",
            "gauge",
            BYTES,
            _STATE,
            "The size of the local copy on this host's disk.",
            reads.copy_bytes,
        ),
        Metric(
            "trident_local_copy_builds",
            "gauge",
            "",
            _STATE,
            "How often this process has built the local copy from the tables.",
            reads.copy_builds,
        ),
        Metric(
            "trident_outside_lag_transactions",
            "gauge",
            "",
            _STATE,
            "Transactions that wait for a state outside of the warehouse: 1 while one does.",
            reads.outside_lag,
        ),
        Metric(
            "trident_outside_waiting_seconds",
            "gauge",
            SECONDS,
            _STATE,
            "How long the outside state has been waited for; 0: it is up to date.",
            reads.outside_waiting,
        ),
        Metric(
            "trident_outside_tries",
            "gauge",
            "",
            _STATE,
            "How often the waiting transaction was tried there and did not succeed.",
            reads.outside_tries,
        ),
        Metric(
            "trident_outside_dead_letters",
            "gauge",
            "",
            _STATE,
            "Rows that the outside state has given up.",
            reads.outside_letters,
        ),
    ),
    "The process": (
        Metric(
            "trident_process_memory_bytes",
            "gauge",
            BYTES,
            ("process",),
            "Resident memory: of this process (python), and of its Spark driver (jvm).",
            reads.resident,
        ),
        Metric(
            "trident_jvm_heap_used_bytes",
            "gauge",
            BYTES,
            (),
            "The heap of Spark's driver in use.",
            reads.heap_used,
        ),
        Metric("trident_jvm_heap_max_bytes", "gauge", BYTES, (), "The greatest that it may be.", reads.heap_max),
        Metric(
            "trident_warehouse_free_bytes",
            "gauge",
            BYTES,
            (),
            "Space that is left on the file system of a warehouse on a disk.",
            reads.free,
        ),
        Metric("trident_warehouse_size_bytes", "gauge", BYTES, (), "The size of that file system.", reads.size),
        Metric(
            "trident_collected_timestamp_seconds",
            "gauge",
            SECONDS,
            ("what",),
            "When the values were last collected: status (every second), process, tables (every"
            " `metrics_interval_secs`); seconds since the epoch. It stands where a disk or a store hangs.",
            reads.collected,
        ),
    ),
}
METRICS: tuple[Metric, ...] = tuple(metric for metrics in SECTIONS.values() for metric in metrics)


# Alert rules for Prometheus, a dashboard for Grafana.
ALERTS, DASHBOARD = "alerts.yml", "dashboard.json"


def monitoring_file(name: str) -> str:
    """The text of ``ALERTS`` or ``DASHBOARD``."""
    return (resources.files("trident.watching") / "monitoring" / name).read_text(encoding="utf-8")

"""Progress of a running topology: one dict per advanced transaction, and its display.

:class:`ProgressLog` keeps the records, with the keys of PySpark's
``StreamingQueryProgress`` in snake_case, and passes them on to a display: one
line that lives at the foot of a terminal, a plain line every few seconds
elsewhere, or none. Displays write to standard error; standard output belongs
to the user's program.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console

KEPT_TRANSACTIONS = 100
_RATE_SPAN_SECS = 10.0
_log = logging.getLogger(__name__)


class Display(Protocol):
    """Shows totals; called under the log's lock, so one call at a time."""

    def refresh(self, totals: Totals) -> None: ...

    def event(self, text: str) -> None: ...

    def close(self, totals: Totals) -> None: ...


class Totals:
    """The work done since the start, and the rate over the last ten seconds.

    A terminal display looks at it from a thread of its own.

    Attributes:
        rows: of transactions whose rows are known.
        unknown: how many transactions there were whose rows are not.
        last_txids: batch group → its last transaction.
    """

    def __init__(self, name: str, clock: Callable[[], float], began_at: float) -> None:
        self.name = name
        self._lock = threading.Lock()
        self.transactions = 0
        self.rows = 0
        self.unknown = 0
        self.in_flight = 0
        self.backlog: Mapping[str, int] = {}
        self.last_txids: dict[str, int | None] = {}
        self._clock = clock
        self._recent: deque[tuple[float, int, int]] = deque([(began_at, 0, 0)])

    def add(self, group: str, txid: int | None, rows: int | None) -> None:
        with self._lock:
            self.transactions += 1
            self.rows += rows or 0
            self.unknown += rows is None
            self.last_txids = {**self.last_txids, group: txid}
            self._recent.append((self._clock(), self.rows, self.unknown))

    def rates(self) -> tuple[float | None, float]:
        """Rows (None: not known) and transactions a second over the last ten seconds; falls to 0 when idle."""
        with self._lock:
            now = self._clock()
            # One mark older than the span stays: it is where the span begins.
            while len(self._recent) > 1 and self._recent[1][0] <= now - _RATE_SPAN_SECS:
                self._recent.popleft()
            begin, rows_then, unknown_then = self._recent[0]
            span = max(now - begin, 1e-3)
            rows = None if self.unknown > unknown_then else (self.rows - rows_then) / span
            return rows, (len(self._recent) - 1) / span


class ProgressLog:
    """The progress of one run of a topology. May be called from any thread; never raises.

    Args:
        id: its incarnation; may be set later (``log.id = …``), when it is known.
        display: of :func:`make_display`; None = records only.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        id: str,
        run_id: str,
        display: Display | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.id, self.run_id = name, id, run_id
        self._display = display
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT_TRANSACTIONS)
        self._began_at = clock()
        self._totals = Totals(name, clock, self._began_at)
        self._of_groups: dict[str, Totals] = {}
        self._previous_at: dict[str, float] = {}
        self._closed = False

    def transaction(self, progress: Mapping[str, Any], recovered: bool = False) -> dict[str, Any]:
        """Records an advanced transaction.

        Args:
            progress: ``batch_id`` (the txid), ``num_input_rows``, ``duration_ms``
                (milliseconds by part: emit, process, prepare, decide, publish,
                advance, total), ``attempt`` (the attempt id), ``in_flight``,
                ``backlog`` (counts by unit; None of a unit: not known),
                ``states`` (rows by state), and ``group`` where there are
                several. Left out, the backlog and what is in flight are as
                last told; the rest is empty. ``num_input_rows`` is None where it is not known: so are the rates then.
            recovered: an earlier process has read its rows, and this one none.

        Returns:
            the record as kept, with ``name``, ``id``, ``run_id``, ``timestamp``
            (UTC, ISO 8601), ``input_rows_per_second`` (rows over the time since
            the transaction before it advanced: the rate that the topology keeps up) and
            ``processed_rows_per_second`` (rows over the batch's own total time)
            added.
        """
        now = self._clock()
        with self._lock:
            group = str(progress.get("group", ""))
            rows: int | None = progress.get("num_input_rows")
            total_secs = float((progress.get("duration_ms") or {}).get("total", 0.0)) / 1000
            since_last = now - self._previous_at.get(group, self._began_at)
            self._previous_at[group] = now
            record = {
                "name": self.name,
                "id": self.id,
                "run_id": self.run_id,
                "timestamp": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "batch_id": None,
                "attempt": None,
                "in_flight": self._totals.in_flight,
                "backlog": dict(self._totals.backlog),
                "states": {},
                "duration_ms": {},
                **progress,
                "num_input_rows": rows,
                "input_rows_per_second": _rate(rows, since_last),
                "processed_rows_per_second": _rate(rows, total_secs),
            }
            self._recent.append(record)
            of_group = self._of_groups.setdefault(group, Totals(self.name, self._clock, self._began_at))
            for totals in (self._totals, of_group):
                totals.add(group, record["batch_id"], 0 if recovered else rows)
            self._take(record["in_flight"], record["backlog"])
            self._show(lambda display: display.refresh(self._totals))
        return dict(record)

    def activity(self, in_flight: int, backlog: Mapping[str, int] | None = None) -> None:
        """Tells the display what is in flight and waiting, between transactions."""
        with self._lock:
            self._take(in_flight, backlog)
            self._show(lambda display: display.refresh(self._totals))

    def event(self, text: str) -> None:
        """Shows one message at once, such as "standby: waiting for host:pid"."""
        with self._lock:
            self._show(lambda display: display.event(text))

    def close(self, last: str = "") -> None:
        """Ends the display with the totals, and a last message; records stay readable. May be called twice."""
        with self._lock:
            self._show(lambda display: display.close(self._totals))
            if last:
                self._show(lambda display: display.event(last))
            self._closed = True

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last 100 records, the oldest first."""
        with self._lock:
            return [dict(record) for record in self._recent]

    @property
    def last_progress(self) -> dict[str, Any] | None:
        with self._lock:
            return dict(self._recent[-1]) if self._recent else None

    def rates(self, group: str) -> tuple[float | None, float]:
        """Rows (None: not known) and transactions of a batch group a second over the last ten seconds."""
        with self._lock:
            totals = self._of_groups.get(group)
            return (0.0, 0.0) if totals is None else totals.rates()

    def _take(self, in_flight: int, backlog: Mapping[str, int] | None) -> None:
        self._totals.in_flight = in_flight
        if backlog is not None:
            self._totals.backlog = {unit: count for unit, count in backlog.items() if count is not None}

    def _show(self, call: Callable[[Display], None]) -> None:
        if self._display is None or self._closed:
            return
        try:
            call(self._display)
        except Exception as error:  # a closed pipe or terminal must not stop a topology
            self._display = None
            _log.warning("the progress display has ended: %s", error)


def _rate(rows: int | None, secs: float) -> float | None:
    if rows is None:
        return None
    return round(rows / secs, 1) if secs > 0 else 0.0


# --- displays ------------------------------------------------------------------------------


def make_display(
    mode: str,
    *,
    interval_secs: float = 5.0,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    log_format: str = "plain",
) -> Display | None:
    """The display for ``TridentConfig.progress``: "auto", "terminal", "plain" or "none".

    "auto" is a terminal display where ``stream`` (standard error) is a terminal
    that can move its cursor, and plain lines elsewhere. With the log format
    "json" all but "none" are records of the log.
    """
    stream = sys.stderr if stream is None else stream
    if mode == "none":
        return None
    if log_format == "json":
        return JsonDisplay(stream, interval_secs, clock)
    if mode == "terminal" or (mode == "auto" and _is_terminal(stream)):
        return TerminalDisplay(stream)
    return PlainDisplay(stream, interval_secs, clock)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:  # closed
        return False


def describe(totals: Totals) -> str:
    """The totals as one line."""
    rows_rate, txid_rate = totals.rates()
    groups = {group: txid for group, txid in totals.last_txids.items() if txid}
    reached = ", ".join(f"{group} {txid}" if len(groups) > 1 else str(txid) for group, txid in groups.items())
    parts = [
        f"{totals.transactions:,} transaction{'' if totals.transactions == 1 else 's'}"
        + (f" (to txid {reached})" if reached else ""),
        "rows unknown" if totals.unknown else f"{totals.rows:,} rows",
        *([] if rows_rate is None else [f"{rows_rate:,.0f} rows/s"]),
        f"{txid_rate:,.1f} transactions/s",
        f"{totals.in_flight} in flight",
    ]
    if totals.backlog:
        parts.append("backlog " + describe_backlog(totals.backlog))
    return " · ".join(parts)


def describe_backlog(backlog: Mapping[str, int]) -> str:
    """Counts by unit as text, bytes in a readable size; empty when nothing is known."""
    return ", ".join(_short(unit, count) for unit, count in backlog.items() if count is not None)


def _short(unit: str, count: int) -> str:
    if unit != "bytes":
        return f"{count:,} {unit}"
    size = float(count)
    for name in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {name}" if name == "B" else f"{size:,.1f} {name}"
        size /= 1000
    return f"{size:,.1f} TB"


class PlainDisplay:
    """Lines for a log: the first transaction, then at most one line per interval, and the end."""

    def __init__(self, stream: TextIO, interval_secs: float, clock: Callable[[], float]) -> None:
        self._stream, self._interval, self._clock = stream, interval_secs, clock
        self._last_at: float | None = None
        self._last_transactions = 0

    def refresh(self, totals: Totals) -> None:
        now = self._clock()
        if totals.transactions == self._last_transactions:
            return
        if self._last_at is None or now - self._last_at >= self._interval:
            self._line(totals)
            self._last_at = now

    def event(self, text: str) -> None:
        self._print(text)

    def close(self, totals: Totals) -> None:
        if totals.transactions != self._last_transactions:
            self._line(totals)

    def _line(self, totals: Totals) -> None:
        self._last_transactions = totals.transactions
        self._print(f"{totals.name}: {describe(totals)}")

    def _print(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", file=self._stream, flush=True)


class JsonDisplay(PlainDisplay):
    """Records of a log at the times of plain lines; for the setting ``log_format``."""

    def event(self, text: str) -> None:
        """The log has it already."""

    def _line(self, totals: Totals) -> None:
        self._last_transactions = totals.transactions
        rows_rate, txid_rate = totals.rates()
        numbers = {
            "transactions": totals.transactions,
            "last_txid": next(iter(totals.last_txids.values())) if len(totals.last_txids) == 1 else None,
            "last_txids": dict(totals.last_txids),
            "rows": None if totals.unknown else totals.rows,
            "rows_per_second": None if rows_rate is None else round(rows_rate, 1),
            "transactions_per_second": round(txid_rate, 1),
            "in_flight": totals.in_flight,
            "backlog": dict(totals.backlog),
        }
        _log.info("%s: %s", totals.name, describe(totals), extra={"topology": totals.name, "progress": numbers})


class TerminalDisplay:
    """One line at the foot of a terminal, redrawn four times a second; messages go above it."""

    def __init__(self, stream: TextIO) -> None:
        self._console = _console(stream)
        self._live: Any = None
        self._spinner: Any = None
        self._totals: Totals | None = None

    def refresh(self, totals: Totals) -> None:
        self._totals = totals
        if self._live is None:
            self._start()

    def event(self, text: str) -> None:
        from rich.text import Text  # time: 50 ms, only for a terminal

        self._console.print(Text(text, style="dim"))

    def close(self, totals: Totals) -> None:
        if self._live is None:
            return
        self._totals, self._spinner = totals, None
        self._live.stop()  # draws the last state and leaves it standing
        self._live = None

    def _start(self) -> None:
        # Time: 50 ms, only for a terminal.
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots")
        # Its own thread redraws, so that the rates fall while nothing happens. Standard
        # output is led around the line only where it goes to the same terminal.
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

    def _render(self) -> Any:
        # Time: as above.
        from rich.table import Table
        from rich.text import Text

        if self._totals is None:
            return Text("")
        line = Table.grid(padding=(0, 1))
        line.add_row(
            self._spinner or Text("●"),
            Text(self._totals.name, style="bold cyan"),
            Text(describe(self._totals), overflow="ellipsis", no_wrap=True),
        )
        return line


def _console(stream: TextIO) -> Console:
    from rich.console import Console  # time: 50 ms, only for a terminal

    class CursorKeepingConsole(Console):
        """Never hides the cursor: a coordinator that is killed could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return CursorKeepingConsole(file=stream, force_terminal=True)

"""Sends the metrics of a run to OpenTelemetry, where the environment configures an exporter by OpenTelemetry's rules.

The values are those of Prometheus' instruments: each export reads them and says them in OpenTelemetry's words, so
nothing is counted twice. Needs the extra ``otel``; without it a warning says so and the topology goes on.

The variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trident.coordinators.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

log = logging.getLogger("trident.watching")
_KNOWN = ("otlp", "console", "none", "prometheus")
_INTERVAL_MS, _TIMEOUT_MS = 60_000, 30_000
# How long an end waits for the last export.
_LAST_SECS = 3.0


class Collected(Protocol):
    """The instruments, as this module reads them."""

    def collect(self) -> Iterable[Family]: ...


def configured_exporters(environment: Mapping[str, str]) -> list[str]:
    """The exporters that the environment asks for: otlp, console.

    Raises:
        ConfigError: there is no such exporter.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    given = environment.get("OTEL_METRICS_EXPORTER", "").strip()
    if not given:
        # OpenTelemetry's own default is otlp to this machine; here that is said by an endpoint.
        endpoints = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return ["otlp"] if any(environment.get(one) for one in endpoints) else []
    names = [name.strip().lower() for name in given.split(",")]
    for name in names:
        if name not in _KNOWN:
            raise ConfigError("OTEL_METRICS_EXPORTER has an unknown exporter", found=name, expected=", ".join(_KNOWN))
    # Prometheus' form is at /metrics already.
    return [name for name in names if name in ("otlp", "console")]


def make_exporters(topology: str, instruments: Collected) -> list[Exporting]:
    """The exports that the environment asks for; none where OpenTelemetry is not installed."""
    found = []
    for name in configured_exporters(os.environ):
        try:
            from trident.watching import otel_data  # an optional dependency

            exporter = otel_data.make_exporter(name)
        except ImportError as error:
            log.warning(
                "OpenTelemetry is configured (%s) and cannot be imported: %s; pip install 'trident-spark[otel]'",
                name,
                error,
            )
            continue
        found.append(Exporting(topology, instruments, exporter, otel_data.as_otel))
    return found


class Exporting:
    """One exporter, in a thread of its own.

    Args:
        exporter: OpenTelemetry's ``MetricExporter``.
        as_otel: see ``otel_data.py``.
    """

    def __init__(self, topology: str, instruments: Collected, exporter: Any, as_otel: Callable[..., Any]) -> None:
        self._topology, self._instruments, self._exporter, self._as_otel = topology, instruments, exporter, as_otel
        self._interval_secs = _millis("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS) / 1000.0
        self._timeout_ms = _millis("OTEL_METRIC_EXPORT_TIMEOUT", _TIMEOUT_MS)
        self._started_ns = time.time_ns()
        self._stopped = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="trident-metrics-otel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Exports once more, and waits for that a moment."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECS)

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._stopped.wait(self._interval_secs)
            try:
                data = self._as_otel(self._topology, self._instruments.collect(), self._started_ns, time.time_ns())
                result = self._exporter.export(data, timeout_millis=self._timeout_ms)
                self._note(getattr(result, "name", "SUCCESS") != "SUCCESS", "it was not taken")
            except Exception as error:  # for show only: it must go on
                self._note(True, error)
        self._exporter.shutdown()

    def _note(self, failed: bool, why: object) -> None:
        if failed and not self._failed:
            log.warning("the metrics of %s could not be exported to OpenTelemetry: %s", self._topology, why)
        self._failed = failed


def _millis(variable: str, default: int) -> int:
    given = os.environ.get(variable, "").strip()
    try:
        value = int(given) if given else default
    except ValueError:
        value = 0
    if value <= 0:
        raise ConfigError(f"{variable} cannot be used", found=repr(given), expected="a number of milliseconds above 0")
    return value

"""The values of Prometheus' instruments in OpenTelemetry's form; the one module that needs OpenTelemetry installed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtelMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from trident.coordinators.errors import ConfigError
from trident.watching.metric_table import BYTES, METRICS, SECONDS, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.samples import Sample

_UNITS = {SECONDS: "s", BYTES: "By", "": "1"}


def make_exporter(name: str) -> Any:
    """OpenTelemetry's exporter of that name, as its environment variables configure it.

    Raises:
        ImportError: it is not installed.
        ConfigError: the protocol is none that OpenTelemetry has.
    """
    if name == "console":
        return ConsoleMetricExporter()
    variables = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[one] for one in variables if os.environ.get(one)), "http/protobuf")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as by_grpc  # an optional dependency

        return by_grpc.OTLPMetricExporter()
    if protocol != "http/protobuf":
        raise ConfigError(f"{variables[1]} cannot be used", found=protocol, expected="http/protobuf, or grpc")
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as by_http  # an optional dependency

    return by_http.OTLPMetricExporter()


def as_otel(topology: str, families: Iterable[Family], started_ns: int, now_ns: int) -> Any:
    """Prometheus' families as OpenTelemetry's ``MetricsData``: cumulative, under the same names, without _total."""

    by_name = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    found = [_metric(by_name[family.name], family.samples, started_ns, now_ns) for family in families if family.samples]
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": topology})
    scope = ScopeMetrics(InstrumentationScope("trident"), found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(metric: Metric, samples: Sequence[Sample], started_ns: int, now_ns: int) -> Any:

    cumulative = AggregationTemporality.CUMULATIVE
    data: Any
    if metric.kind == "histogram":
        data = Histogram(_histogram_points(metric, samples, started_ns, now_ns), cumulative)
    else:
        points = [NumberDataPoint(sample.labels, started_ns, now_ns, sample.value) for sample in samples]
        data = Sum(points, cumulative, True) if metric.kind == "counter" else Gauge(points)
    return OtelMetric(metric.name.removesuffix("_total"), metric.about, _UNITS[metric.unit], data)


def _histogram_points(metric: Metric, samples: Sequence[Sample], started_ns: int, now_ns: int) -> list[Any]:

    counts: dict[tuple[tuple[str, str], ...], list[int]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            counts.setdefault(key, []).append(int(sample.value))  # in the order of their bounds
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    points = []
    for key, upto in counts.items():
        each = [after - before for before, after in zip([0, *upto], upto)]
        # Least and greatest are not known; OpenTelemetry's own value for that.
        least, greatest = float("inf"), float("-inf")
        points.append(
            HistogramDataPoint(
                dict(key), started_ns, now_ns, upto[-1], sums[key], each, list(metric.buckets), least, greatest
            )
        )
    return points

"""The files for Prometheus and Grafana that come with the package: alert rules, and a dashboard."""

from __future__ import annotations

from importlib import resources

ALERTS, DASHBOARD = "alerts.yml", "dashboard.json"


def monitoring_file(name: str) -> str:
    """The text of one of them."""
    return (resources.files("trident.watching") / "monitoring" / name).read_text(encoding="utf-8")

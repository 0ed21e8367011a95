"""The metrics of one run of a topology: at ``/metrics`` of its port, and to OpenTelemetry's exporters."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trident.coordinators.errors import Halted
from trident.watching.collecting import Collecting, Observed
from trident.watching.events import Event, Started, Terminated
from trident.watching.instruments import Instruments
from trident.watching.otel import Exporting, make_exporters

log = logging.getLogger("trident.watching")


class Metrics:
    """Begins when the topology is started, and ends with it: add :meth:`watch` to the watchers.

    Args:
        interval_secs: between two looks at the tables.

    Attributes:
        instruments: hold the values.
    """

    def __init__(self, topology: str, observed: Observed, interval_secs: float) -> None:
        self._collecting = Collecting(topology, observed, interval_secs)
        self.instruments = Instruments(topology, self._collecting.facts)
        self._exporting: Sequence[Exporting] = make_exporters(topology, self.instruments)

    def watch(self, event: Event) -> None:
        """A watcher of the topology."""
        try:
            self.instruments.watch(event)
        except Exception:  # what begins and ends with events must go on, and be told the last one
            log.warning("%s: %s is not in its metrics", event.topology, type(event).__name__, exc_info=True)
        self._collecting.watch(event)
        if isinstance(event, Started):
            self._collecting.start()
            for exporting in self._exporting:
                exporting.start()
        elif isinstance(event, Terminated):
            self._collecting.stop(
                "halted" if isinstance(event.error, Halted) else "failed" if event.error else "stopped"
            )
            for exporting in self._exporting:
                exporting.stop()

    @property
    def route(self) -> Route:
        """``GET /metrics``: as Prometheus reads it, in the form that the request asks for."""
        return Route("/metrics", self._answer)

    async def _answer(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(self.instruments), headers={"Content-Type": content_type})

"""Routes DRPC requests: answers them while this process leads, and owns the HTTP listener."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TridentError
from trident.drpc.requests import Answer, DrpcRequests, check_timeout, find_plan, not_leading
from trident.planning.nodes import TopologyGraph
from trident.planning.requests import drpc_plans

if TYPE_CHECKING:
    from starlette.routing import Route

    from trident.config import TridentConfig
    from trident.drpc.http import HttpServer

log = logging.getLogger("trident.drpc")


class _Role(enum.Enum):
    STARTING = "starting"
    STANDBY = "standby"
    LEADER = "leader"
    ENDED = "ended"


class DrpcFront:
    """Lives as long as a query; requests are answered while its process leads.

    Args:
        event: is told in a line what happens.

    Attributes:
        routes: further paths at the port; set before :meth:`listen`.

    Raises:
        TopologyError: a function has several results.
    """

    def __init__(self, graph: TopologyGraph, config: "TridentConfig", event: Callable[[str], None]) -> None:
        self.name, self.plans = graph.name, drpc_plans(graph)
        self._address, self._token, self._event = config.http, config.http_token, event
        self.routes: Sequence[Route] = ()
        self.role_of: Callable[[], str] | None = None  # where a supervisor knows more
        self._changed = threading.Condition()
        self._role = _Role.STARTING
        self._requests: DrpcRequests | None = None
        self._http: HttpServer | None = None
        self._is_port_taken = False

    # --- what a user asks ---------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Tells whether requests are answered here."""
        return self._role is _Role.LEADER

    @property
    def role(self) -> str:
        """starting, standby, leader or ended; of a query the word that its status has."""
        return self._role.value if self.role_of is None or self._role is _Role.ENDED else self.role_of()

    @property
    def http_address(self) -> str | None:
        """Where the HTTP server listens."""
        return self._http.address if self._http else None

    def execute(self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float) -> Answer:
        """Answers a request; first waits, as part of its time, until a topology that was just started leads."""
        find_plan(self.plans, function)
        check_timeout(timeout_secs)
        deadline = time.monotonic() + timeout_secs
        with self._changed:
            self._changed.wait_for(lambda: self._role is not _Role.STARTING, timeout_secs)
        return self.answer(function, args, named, max(deadline - time.monotonic(), 0.001))

    def answer(self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float) -> Answer:
        """As :meth:`execute`, without waiting.

        Raises:
            NotLeading: this process does not lead.
        """
        find_plan(self.plans, function)
        requests = self._requests
        if requests is None:
            raise not_leading(self.name, self.role)
        return requests.execute(function, args, named, timeout_secs)

    # --- what the query tells -----------------------------------------------------------------

    def became_standby(self) -> None:
        """Another process leads; this one is its standby."""
        self._become(_Role.STANDBY, None)

    def leads(self, requests: DrpcRequests) -> None:
        """This process leads, and answers requests by these."""
        self._become(_Role.LEADER, requests)

    def stops_leading(self) -> None:
        """Ends the requests that run; callers that wait for an answer get NotLeading."""
        if self.is_leader:
            self._become(_Role.STARTING, None)

    def end(self) -> None:
        """Nothing more is answered, and the port is closed."""
        self._become(_Role.ENDED, None)
        if self._http is not None:
            self._http.stop()

    def _become(self, role: _Role, requests: DrpcRequests | None) -> None:
        with self._changed:
            before, self._requests, self._role = self._requests, requests, role
            self._changed.notify_all()
        if before is not None:
            before.close()

    # --- HTTP ---------------------------------------------------------------------------------

    def listen(self) -> None:
        """Opens the HTTP port, if there is to be one and it is not open; call it again until it is.

        A standby on its leader's machine finds the port taken, and gets it once that has gone.

        Raises:
            ConfigError: the address cannot be listened at.
        """
        if not self._address or self._http is not None:
            return
        from trident.drpc.http import AddressInUse, HttpServer  # time: 80 ms, only where there is an address

        try:
            with self._changed:
                if self._role is _Role.ENDED:
                    return
                self._http = HttpServer(self._address, self._token, self, self.routes)
        except AddressInUse as problem:
            if not self._is_port_taken:
                self._is_port_taken = True
                self._event(f"{problem}; trying again until it is free")
            return
        where = f"http://{self._http.address}"
        page = f"shows its page at {where}/, and " if self.routes else ""
        self._event(f"{self.name} {page}answers requests at {where}/drpc")

    def listen_again(self) -> None:
        """As :meth:`listen`, where no caller could take an error."""
        try:
            self.listen()
        except TridentError as problem:
            log.warning("%s", problem)

"""A port that is kept for a server: no connection and no other process is given it while the server is away."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from trident.coordinators.embedded_server import LoopbackPort, outgoing_ports

_IP_LOCAL_PORT_RANGE = 51  # Linux 6.3 and later


@pytest.fixture
def port() -> Iterator[LoopbackPort]:
    made = LoopbackPort()
    yield made
    made.close()


def test_no_outgoing_connection_is_given_the_chosen_port(port: LoopbackPort) -> None:
    low, high = outgoing_ports()
    assert not low <= port.number <= high and port.number >= 1024


def test_where_all_ports_are_for_connections_one_of_them_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.coordinators.embedded_server.outgoing_ports", lambda: (1024, 65535))
    port = LoopbackPort()
    assert port.number >= 1024 and port.is_free
    port.close()


def test_two_choose_two_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.coordinators.embedded_server._not_outgoing", lambda: range(61_000, 61_004))
    made = [LoopbackPort() for _ in range(6)]
    assert len({port.number for port in made}) == 6
    for port in made:
        port.close()


def test_a_server_can_listen_at_it_again_and_again_and_it_is_free_between(port: LoopbackPort) -> None:
    for _ in range(2):
        assert port.is_free
        with socket.create_server(("127.0.0.1", port.number)) as server:
            assert not port.is_free
            with pytest.raises(OSError):
                LoopbackPort(port.number)
            with socket.create_connection(("127.0.0.1", port.number)), server.accept()[0] as accepted:
                accepted.shutdown(socket.SHUT_RDWR)  # the server's side closes first: TIME_WAIT
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number))


@pytest.mark.skipif(sys.platform != "linux", reason="reserved on Linux alone")
def test_one_that_is_away_is_given_to_no_second_until_it_is_closed(port: LoopbackPort) -> None:
    """Two warehouses, one a copy of the other, name the same port of last time and may start at once."""
    with pytest.raises(OSError):
        LoopbackPort(port.number)
    assert port.is_free, "for its own server"
    port.close()
    LoopbackPort(port.number).close()


@pytest.mark.skipif(sys.platform != "linux", reason="reserved on Linux alone")
def test_nothing_else_is_given_it_while_the_server_is_away() -> None:
    number = outgoing_ports()[0] + 4321
    port = LoopbackPort(number)
    try:
        with pytest.raises(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", number))
        assert not connects_from(number)
    finally:
        port.close()
    assert connects_from(number), "else the test proves nothing"


def connects_from(number: int) -> bool:
    """Tells whether a connection is given this port when there is no other for it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
        try:
            one.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("I", number << 16 | number))
        except OSError:
            pytest.skip("NOT TESTED: a connection from one port alone needs Linux 6.3")
        try:
            one.connect(server.getsockname())
        except OSError:
            return False
        return True

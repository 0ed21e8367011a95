"""A relay between clients and one server: it holds, doubles, drops or cuts single requests and answers, or everything.

Of the protocol it knows what a ``Language`` says.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Protocol

_ANSWER_SECS = 30.0
_READ_BYTES = 1 << 16
_SIZE = struct.Struct(">i")


class Language(Protocol):
    """What a relay has to know of a protocol."""

    def take(self, buffer: bytearray) -> bytes | None:
        """Cuts the first whole message off the buffer; None: there is none yet."""

    def request(self, message: bytes) -> tuple[str, Hashable]:
        """A request's name, and the key by which its answer is known."""

    def answer(self, message: bytes) -> Hashable:
        """The key of the request that is answered."""


class Sized:
    """Of a ``Language`` whose messages begin with their size, in four bytes."""

    def take(self, buffer: bytearray) -> bytes | None:
        if len(buffer) < _SIZE.size:
            return None
        end = _SIZE.size + _SIZE.unpack_from(buffer)[0]
        if len(buffer) < end:
            return None
        message = bytes(buffer[:end])
        del buffer[:end]
        return message


class AnyBytes:
    """``Language`` of any protocol: each read is a message, and an answer belongs to the latest request.

    Args:
        names: the words by which a request is known; one that has none of them has no name.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def take(self, buffer: bytearray) -> bytes | None:
        message = bytes(buffer)
        buffer.clear()
        return message or None

    def request(self, message: bytes) -> tuple[str, int]:
        return next((name for name in self._names if name.encode() in message), ""), 0

    def answer(self, message: bytes) -> int:
        return 0


class Act(Enum):
    """What happens to a request."""

    LATE = "the client's connection ends; the request arrives when it is delivered"
    STALLED = "the client's connection stays, silent from then on; the request arrives when it is delivered"
    DOUBLED = "it goes on as ever; a copy arrives, on a connection of its own, when it is delivered"
    LOST = "it never arrives; the connection ends"
    SILENT = "it never arrives; the connection stays, silent from then on"
    TORN = "half of its bytes arrive; the connection ends"
    UNANSWERED = "its answer never arrives; the connection ends"
    UNHEARD = "its answer never arrives, nor a later one of its connection, which stays"
    TORN_ANSWER = "half of its answer's bytes arrive; the connection ends"


class Fault:
    """One fault, for one request: the first of its name that comes once some have passed.

    Attributes:
        met: set once the request has come.
    """

    def __init__(self, relay: Relay, name: str, act: Act, skip: int) -> None:
        self._relay, self.name, self.act, self.skip = relay, name, act, skip
        self.met = threading.Event()
        self._held: tuple[Connection | None, bytes] | None = None

    def hold(self, connection: Connection | None, message: bytes) -> None:
        """Keeps the request; without a connection its copy is sent on a new one."""
        self._held = connection, message

    def deliver(self) -> bytes | None:
        """Lets the server have the request now, and returns its answer; None: it has had it."""
        assert self.met.wait(_ANSWER_SECS), f"no {self.name} has come"
        held, self._held = self._held, None
        if held is None:
            return None
        connection, message = held
        if connection is None:
            connection = Connection(self._relay, None)
        connection.server.sendall(message)
        answer = connection.late.get(timeout=_ANSWER_SECS)
        connection.close()
        return answer


class Relay:
    """Listens at a port, and passes on to another one; close it in the end.

    Args:
        port, server: both of the loopback interface; 0: a free port.

    Attributes:
        down: each new connection is ended at once.
        passes: while it is not set nothing passes, and neither side hears of it.
    """

    def __init__(self, port: int, server: int, language: Language) -> None:
        self.server, self.language = server, language
        self.down = False
        self.passes = threading.Event()
        self.passes.set()
        self._changed = threading.Condition()
        self._faults: list[Fault] = []
        self._actions: dict[str, Callable[[], object]] = {}
        self._connections: list[Connection] = []
        self._answered: dict[str, int] = {}
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._thread.start()

    def arm(self, name: str, act: Act, skip: int = 0) -> Fault:
        """The next request of that name, after ``skip`` others, gets the fault."""
        fault = Fault(self, name, act, skip)
        with self._changed:
            self._faults.append(fault)
        return fault

    def before(self, name: str, action: Callable[[], object]) -> None:
        """Runs the action once the next request of that name has come: the server gets the request after it."""
        with self._changed:
            self._actions[name] = action

    def answered(self, name: str) -> int:
        """How many requests of that name were answered to clients."""
        with self._changed:
            return self._answered.get(name, 0)

    def wait_answered(self, name: str, count: int) -> None:
        """Returns once more than ``count`` requests of that name were answered."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._answered.get(name, 0) > count, _ANSWER_SECS)

    def close(self) -> None:
        self.passes.set()
        _end(self._listener)
        self._thread.join(_ANSWER_SECS)
        self.go_down()

    def go_down(self) -> None:
        """Ends all connections; there are no new ones until ``down`` is False."""
        self.down = True
        self.cut_all()

    def cut_all(self) -> None:
        with self._changed:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self.down:
                _end(client)
            else:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.passes.wait()
        with suppress(OSError):  # the server is away: the client is refused, too
            Connection(self, client)

    # --- asked by connections

    def cut(self, connection: Connection) -> None:
        """A request or an answer is lost with its connection."""
        connection.close()

    def opened(self, connection: Connection) -> None:
        with self._changed:
            self._connections = [one for one in self._connections if not one.is_closed]
            self._connections.append(connection)

    def fault_of(self, name: str) -> Fault | None:
        with self._changed:
            for fault in self._faults:
                if fault.name == name:
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    self._faults.remove(fault)
                    return fault
        return None

    def act_before(self, name: str) -> None:
        with self._changed:
            action = self._actions.pop(name, None)
        if action is not None:
            action()

    def was_answered(self, name: str) -> None:
        with self._changed:
            self._answered[name] = self._answered.get(name, 0) + 1
            self._changed.notify_all()


class Connection:
    """A client's connection and the one to the server that belongs to it; without a client, the latter alone.

    Attributes:
        late: answers that no client waits for.
    """

    def __init__(self, relay: Relay, client: socket.socket | None) -> None:
        self._relay, self._client = relay, client
        try:
            self.server = socket.create_connection(("127.0.0.1", relay.server), _ANSWER_SECS)
        except OSError:
            if client is not None:
                client.close()
            raise
        self.server.settimeout(None)
        self.late: queue.Queue[bytes] = queue.Queue()
        self.is_closed = False
        self._asked: dict[Hashable, tuple[str, Fault | None]] = {}
        relay.opened(self)
        for target in [self._from_server, *([self._from_client] if client is not None else [])]:
            threading.Thread(target=target, name="relay-connection", daemon=True).start()

    def close(self) -> None:
        self.is_closed = True
        for one in (self._client, self.server):
            if one is not None:
                _end(one)

    def _from_client(self) -> None:
        assert self._client is not None
        language, client, is_silent = self._relay.language, self._client, False
        for message in self._messages(client):
            if is_silent:
                continue
            name, key = language.request(message)
            self._relay.act_before(name)
            fault = self._relay.fault_of(name)
            act = fault.act if fault is not None else None
            self._asked[key] = name, fault
            if act in (Act.LATE, Act.STALLED):
                assert fault is not None
                fault.hold(self, message)
                if act is Act.LATE:
                    self._client = None
                    _end(client)
                is_silent = True
            elif act is Act.SILENT:
                is_silent = True
            elif act is Act.LOST:
                self._relay.cut(self)
            else:
                if act is Act.DOUBLED:
                    assert fault is not None
                    fault.hold(None, message)
                with suppress(OSError):
                    self.server.sendall(message[: len(message) // 2] if act is Act.TORN else message)
                if act is Act.TORN:
                    self.close()
            if fault is not None:
                fault.met.set()
        if not is_silent:
            self.close()

    def _from_server(self) -> None:
        language, is_mute = self._relay.language, False
        for message in self._messages(self.server):
            name, fault = self._asked.pop(language.answer(message), ("", None))
            act = fault.act if fault is not None else None
            if self._client is None or act is Act.STALLED:
                if fault is not None or not name:  # else of a request that went before
                    self.late.put(message)
            elif act is Act.UNANSWERED:
                self._relay.cut(self)
            elif is_mute or act is Act.UNHEARD:  # answers come in the order of their requests: none may be left out
                is_mute = True
            else:
                self._relay.was_answered(name)  # first: the client may go on at once, and count what follows
                with suppress(OSError):
                    self._client.sendall(message[: len(message) // 2] if act is Act.TORN_ANSWER else message)
                if act is Act.TORN_ANSWER:
                    self.close()
        self.close()

    def _messages(self, one: socket.socket) -> Iterator[bytes]:
        buffer, relay = bytearray(), self._relay
        with suppress(OSError):
            while data := one.recv(_READ_BYTES):
                buffer += data
                while (message := relay.language.take(buffer)) is not None:
                    relay.passes.wait()
                    yield message
        relay.passes.wait()  # the end of a connection does not come through a cut cable either


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

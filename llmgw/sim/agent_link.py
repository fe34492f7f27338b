"""The agent's side of its connection: the upgrade, then frames, as the driver does it."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent import session
from llmgw.sim.network import End, Network
from llmgw.sim.say import describe
from llmgw.wire.frames import Decoder, FrameError, down_decoder, encode
from llmgw.wire.messages import CommandResult, Down, Heartbeat, Up
from llmgw.wire.versions import UPGRADE

if TYPE_CHECKING:
    from llmgw.sim.agent_process import AgentProcess

_HEAD_END = b"\r\n\r\n"
_CLOSING = 0.01
USER_TIMEOUT = 20.0


class AgentLink:
    """Carries out ``Connect``, ``Send`` and ``Disconnect``; tells ``Opened``,
    ``Received`` and, exactly once for each ``Connect``, ``Closed``."""

    def __init__(self, process: "AgentProcess", network: Network) -> None:
        self._process = process
        self._network = network
        self.trap: Callable[[End], None] | None = None
        """What happens to the connection when it next carries the answer to a command."""
        self._attempt = 0
        self._over = True
        self._end: End | None = None
        self._head: bytes | None = b""
        self._decoder: Decoder[Down] = down_decoder()

    def connect(self, attempt: int, address: str) -> None:
        """Open a connection and upgrade it."""
        self._attempt = attempt
        self._over = False
        self._end = None
        self._head = b""
        self._decoder = down_decoder()
        run = self._process.run
        self._network.connect(self._process.host.name, address, lambda end: run(self._connected, attempt, end, address))

    def send(self, attempt: int, message: Up) -> None:
        """Put a frame on the connection, if it is still that one."""
        if attempt == self._attempt and not self._over and self._end is not None:
            if not isinstance(message, Heartbeat):
                self._process.log(f"=> {describe(message)}")
            if self.trap is not None and isinstance(message, CommandResult):
                trap, self.trap = self.trap, None
                trap(self._end)
            self._end.send(encode(message))

    def disconnect(self, attempt: int, reason: str) -> None:
        """Close it, then say so."""
        if attempt == self._attempt and not self._over:
            self._process.later(_CLOSING, self._close, attempt, reason)
            if self._end is not None:
                self._end.lose_some()  # what its writer had not written yet
                self._end.close()

    def died(self, rng: random.Random) -> None:
        """The process is gone: the kernel ends the connection."""
        if self._end is not None and self._end.open:
            if rng.random() < 0.5:
                self._end.close()
            else:
                self._end.reset()

    def vanish(self) -> None:
        """The host is off: nobody is told."""
        if self._end is not None:
            self._end.silence()

    def _connected(self, attempt: int, end: End | str, address: str) -> None:
        if isinstance(end, str):
            self._close(attempt, end)
            return
        if attempt != self._attempt or self._over or not self._process.alive:
            end.close()
            return
        self._end = end
        end.user_timeout = USER_TIMEOUT
        run = self._process.run
        end.on_data = lambda data: run(self._data, attempt, data)
        end.on_end = lambda: run(self._close, attempt, "the control plane closed the connection")
        end.on_error = lambda reason: run(self._close, attempt, reason)
        node = self._process.host.name
        end.send(
            f"GET /agent/v1/session HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
            f"Llmgw-Node: {node}\r\n\r\n".encode()
        )

    def _data(self, attempt: int, data: bytes) -> None:
        if attempt != self._attempt or self._over:
            return
        if self._head is not None:
            self._head += data
            head, end, data = self._head.partition(_HEAD_END)
            if not end:
                return
            self._head = None
            status = head.split(b"\r\n")[0].decode()
            if not status.startswith("HTTP/1.1 101 "):
                self._close(attempt, f"the upgrade was refused: {status}")
                return
            self._process.feed(session.Opened(attempt))
        try:
            for message in self._decoder.feed(data):
                if attempt != self._attempt or self._over:
                    return
                self._process.feed(session.Received(attempt, message))
        except FrameError as error:
            self._close(attempt, str(error))

    def _close(self, attempt: int, reason: str) -> None:
        if attempt != self._attempt or self._over:
            return
        self._over = True
        if self._end is not None:
            self._end.close()
        self._process.feed(session.Closed(attempt, reason))

"""Whom nodes obey, as a test sees it from outside (AGT-04)."""

import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.records import AgentState


class Obedience(threading.Thread):
    """Watches what every node's agent has on disk: whom it obeys, and which commands it took.
    A command's id begins with the name of the term that gave it."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__(daemon=True)
        self._files = files
        self._over = threading.Event()
        self._looking = threading.Lock()
        self.obeyed: dict[str, tuple[int, str]] = {}
        self.taken: dict[str, list[str]] = {name: [] for name in files}
        self.faults: list[str] = []
        self.start()

    def run(self) -> None:
        """Look, again and again."""
        while not self._over.wait(0.02):
            self.look()

    def look(self) -> None:
        """Look once. An epoch that falls, or is another leader's all of a sudden, is a fault."""
        with self._looking:
            for name, file in self._files.items():
                try:
                    state = msgspec.json.decode(file.read_bytes(), type=AgentState)
                except FileNotFoundError:
                    continue
                epoch, leader = self.obeyed.get(name, (0, ""))
                if state.highest_epoch < epoch or (state.highest_epoch == epoch and leader not in ("", state.leader)):
                    self.faults.append(f"{name} obeyed {leader} with epoch {epoch}, and then {state}")
                self.obeyed[name] = (state.highest_epoch, state.leader)
                self.taken[name] += [command for command in state.commands if command not in self.taken[name]]

    def commands(self, boot: str) -> int:
        """How many were taken that the term of this name gave."""
        self.look()
        return sum(command.startswith(f"{boot}-") for taken in self.taken.values() for command in taken)

    @property
    def count(self) -> int:
        """How many were taken."""
        self.look()
        return sum(map(len, self.taken.values()))

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self.join(10)

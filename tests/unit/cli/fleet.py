"""Answers of the admin API for a fleet of any size: the same size, the same answers.

``Fleet(nodes)`` has ``nodes`` nodes, each with eight devices from sixteen nodes on, and
its share of everything that goes wrong.
"""

from typing import Any

GIB = 1024**3
Plain = dict[str, Any]

SMALL, LARGE = 4, 2000

WORDS = ("chat", "code", "embed", "vision", "summary", "rerank", "translate", "search", "draft", "judge")


class Fleet:
    """What the API answers; each list is whole, ``page`` cuts it."""

    def __init__(self, nodes: int) -> None:
        self.large = nodes >= 16
        self.nodes = [self._node(number) for number in range(nodes)]
        self.models = [self._model(number) for number in range(120 if self.large else 5)]
        self.replicas = [replica for model in self.models for replica in self._replicas(model)]
        for replica in self.replicas:
            for shard in replica["shards"]:
                node = self.nodes[int(shard["node"].removeprefix("a")) - 1]
                node["replicas"].append(replica["id"])

    # ------------------------------------------------------------ nodes

    def _node(self, number: int) -> Plain:
        away = (self.large and (number % 50 == 7 or number % 400 in (11, 12, 13))) or (not self.large and number == 3)
        status = "connected" if not away else "lost" if number % 400 == 11 else "unreachable"
        row, rack = divmod(number // 8, 10)
        node: Plain = {
            "id": f"a{number + 1:0{4 if self.large else 2}}",
            "status": status,
            "status_seconds": 3600.0 * (number % 40 + 1),
            "last_heard_seconds": 3600.0 if away else 1.2,
            "enrolled": True,
            "location": {"room": "hall-1", "row": f"row-{row + 1}", "rack": f"r{rack + 1}"},
            "labels": {"llmgw.io/room": "hall-1", "llmgw.io/row": f"row-{row + 1}", "llmgw.io/rack": f"r{rack + 1}"},
            "replicas": [],
        }
        if away:  # what it had is not known any more
            return {**node, "cpu": {"claimed_cores": 0.0}, "memory": {"claimed_bytes": 0}, "devices": []}
        gpus = 8 if self.large else (2 if number < 2 else 0)
        cores = 128 if gpus else 64
        used = (number * 7) % 100
        node |= {
            "agent_version": "0.1.0",
            "address": f"10.0.{number // 250}.{number % 250 + 1}",
            "hostname": f"a{number + 1}.example.org",
            "os": "Debian GNU/Linux 12",
            "kernel": "6.1.0",
            "arch": "x86_64",
            "cpu": {
                "model": "EPYC 9354",
                "count": cores,
                "claimed_cores": float((number * 13) % cores),
                "percent": float(used),
                "load1": used / 2,
            },
            "memory": {
                "total_bytes": (1007 if gpus else 251) * GIB,
                "claimed_bytes": (number * 37 % (1000 if gpus else 250)) * GIB,
                "used_bytes": (number * 31 % 200 + 20) * GIB,
            },
            "devices": [self._device(number, index, gpus) for index in range(gpus)],
            "engines": [{"name": "llamacpp", "state": "ready", "version": "b6000"}],
        }
        if self.large and number % 4 == 1:
            node["engines"].append({"name": "vllm", "state": "failed", "detail": "pip ended with exit status 1"})
        if number % 200 == 2:
            node["cordon"] = {"reason": "fan is failing", "actor": "ada (cli:ada)", "at": "2030-01-31T02:10:00+00:00"}
        return node

    def _device(self, number: int, index: int, gpus: int) -> Plain:
        busy = (number * 8 + index) % 10 < 6
        device: Plain = {
            "uuid": f"GPU-{number:04}-{index}",
            "kind": "gpu",
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "device_class": "h100-80" if number % 3 or gpus < 8 else "a100-40",
            "memory_bytes": 80 * GIB,
            "memory_used_bytes": (70 if busy else 1) * GIB,
            "utilization_percent": float((number * 11 + index * 7) % 101 if busy else 0),
            "temperature_celsius": 61.0,
            "power_watts": 412.0 if busy else 68.0,
        }
        if busy:
            device["claimed_by"] = f"chat-{number:04}"
        elif (number + index) % 97 == (1 if self.large else 2):
            device["excluded"] = "ECC errors: 12 uncorrected since boot"
        return device

    # ------------------------------------------------------------ models

    def _model(self, number: int) -> Plain:
        word = WORDS[number % len(WORDS)]
        name = f"{word}-{number // len(WORDS) + 1}" if self.large else word
        wanted = 12 if self.large else 2
        state, ready, reason = "ready", wanted, None
        if number % 12 == 3:
            state, ready = "unplaceable", 0
            free = 64 - number % 7
            reason = (
                f"model {name} cannot be placed: needs 4 devices of class h200-141, 0 of 0 free after claims; needs "
                f"{400 + number}.0 GB memory, {free}.5 of 251.0 GB free after claims (node a{number + 1:02}); and "
                f"{len(self.nodes) - 1} more nodes were turned down"
            )
        elif number % 40 == 4:
            state, ready = "parked", 0
            reason = "failed 5 times in a row, last with: the engine ended by itself: CUDA error: out of memory"
        elif number % 30 == 9:
            state, ready, reason = "loading", 1, "1 of its replicas is ready, the others start"
        elif number % 25 == 2:
            state, ready, wanted = "off", 0, 0
        always = wanted > 0
        return {
            "name": name,
            "aliases": [f"{name}-latest"] if number % 3 == 0 else [],
            "state": state,
            **({"reason": reason} if reason else {}),
            "wanted": wanted,
            "live": ready,
            "ready": ready,
            "parked": state == "parked",
            "failures": 5 if state == "parked" else 0,
            "scaling": {"min": wanted, "max": wanted, "mode": "always" if always else "off"},
            "profiles": [{"name": "p0", "engine": "vllm" if self.large else "llamacpp", "source": f"file:/srv/{name}"}],
            "replicas": [],
            "origin": "catalog.yaml",
        }

    def _replicas(self, model: Plain) -> list[Plain]:
        found = []
        for number in range(model["ready"] + (1 if model["state"] in ("loading", "parked") else 0)):
            ready = number < model["ready"]
            key = sum(map(ord, model["name"])) * 31 + number * 17
            node = self.nodes[key % len(self.nodes)]
            shard: Plain = {
                "rank": 0,
                "incarnation": 1,
                "node": node["id"],
                "phase": "running",
                "engine": model["profiles"][0]["engine"],
                "port": 20000 + key % 900,
                "pid": 4000 + key % 20000,
                "cpu_cores": 8.0,
                "memory_bytes": 64 * GIB,
            }
            replica: Plain = {
                "id": f"{model['name']}-{key * 2654435761 % 2**32:08x}",
                "model": model["name"],
                "profile": "p0",
                "state": "ready" if ready else "failed" if model["state"] == "parked" else "starting",
                "state_seconds": 86400.0 * 3 + number * 61,
                "age_seconds": 86400.0 * 3 + number * 61 + 40,
                "stale": number == 0 and model["name"].startswith("code"),
                "rejected": [],
                "shards": [shard],
            }
            if replica["stale"]:
                replica["stale_because"] = "its profile has changed since it was started"
            if model["state"] == "parked" and not ready:
                shard["exit"] = {
                    "code": "exited",
                    "message": "the engine ended by itself: CUDA error: out of memory (exit status 1) while it loaded "
                    "the weights; 71.2 of 80.0 GB were in use by others",
                }
            found.append(replica)
        return found

    # ------------------------------------------------------------ the whole

    def _problems(self) -> list[Plain]:
        found = []
        for node in self.nodes:
            if node["status"] != "connected":
                found.append({"kind": "node", "subject": node["id"], "message": f"is {node['status']}"})
            for device in node["devices"]:
                if "excluded" in device:
                    subject = f"{node['id']} {device['index']}"
                    found.append(
                        {"kind": "device", "subject": subject, "message": f"is not used: {device['excluded']}"}
                    )
            for engine in node.get("engines", ()):
                if engine["state"] == "failed":
                    subject = f"{engine['name']} on {node['id']}"
                    found.append({"kind": "engine", "subject": subject, "message": engine["detail"]})
        for model in self.models:
            if model["state"] in ("unplaceable", "parked"):
                message = f"{model['ready']} of {model['wanted']} ready: {model['reason']}"
                found.append({"kind": "model", "subject": model["name"], "message": message})
        if self.large:
            found.append({"kind": "store", "subject": "database", "message": "no answer within 5 s: disk I/O error"})
        return found

    @property
    def status(self) -> Plain:
        """``GET /status``."""
        here = [node for node in self.nodes if node["status"] == "connected"]
        devices = [device for node in here for device in node["devices"]]
        classes = []
        for name in sorted({device["device_class"] for device in devices}):
            mine = [device for device in devices if device["device_class"] == name]
            claimed = sum("claimed_by" in device for device in mine)
            excluded = sum("excluded" in device for device in mine)
            classes.append(
                {
                    "device_class": name,
                    "total": len(mine),
                    "claimed": claimed,
                    "excluded": excluded,
                    "free": len(mine) - claimed - excluded,
                }
            )
        words = ("connected", "reconnecting", "unreachable", "lost")
        nodes = {word: sum(node["status"] == word for node in self.nodes) for word in words}
        states: dict[str, int] = {}
        for replica in self.replicas:
            states[replica["state"]] = states.get(replica["state"], 0) + 1
        return {
            "version": "0.1.0",
            "epoch": 7,
            "leader": {"name": "cp-1", "ha": False, "sure": True},
            "uptime_seconds": 86400.0 * 12 + 3600 * 4,
            "settling": {"active": False},
            "problems": self._problems(),
            "nodes": {"total": len(self.nodes), **nodes, "cordoned": sum("cordon" in node for node in self.nodes)},
            "capacity": {
                "devices": classes,
                "memory": {
                    f"{word}_bytes": sum(node["memory"][f"{word}_bytes"] for node in here)
                    for word in ("total", "claimed", "used")
                },
                "cores": {
                    "total_cores": float(sum(node["cpu"]["count"] for node in here)),
                    "claimed_cores": sum(node["cpu"]["claimed_cores"] for node in here),
                    "used_cores": sum(node["cpu"]["count"] * node["cpu"]["percent"] / 100 for node in here),
                },
            },
            "models": self.models,
            "replicas": states,
            "routers": [{"id": f"router-{n}", "boot": "b", "version": "0.1.0"} for n in range(4 if self.large else 2)],
        }

    @property
    def usage(self) -> list[Plain]:
        """``GET /usage`` by model."""
        rows = []
        for number, model in enumerate(self.models[:20]):
            requests = (number * 7919 % 9973 + 1) * (400 if self.large else 3)
            rows.append(
                {
                    "model": model["name"],
                    "requests": requests,
                    "failed": requests // 250,
                    "prompt_tokens": requests * 812,
                    "completion_tokens": requests * 211,
                    "cached_tokens": requests * 300,
                    "uncounted": requests // 90 if number % 4 == 0 else 0,
                }
            )
        return rows

    def explained(self) -> Plain:
        """``GET /models/vision/explain``: a model that no node can take."""
        model = self.models[3]
        candidates = []
        for number, node in enumerate(self.nodes):
            away = node["status"] != "connected"
            reasons = [{"code": "node_away", "message": f"node {node['id']} is {node['status']}"}]
            if not away:
                reasons = [
                    {
                        "code": "no_device_class",
                        "message": "needs 4 devices of class h200-141, 0 of 0 free after claims",
                    },
                    {
                        "code": "memory_claimed",
                        "message": f"needs 403.0 GB memory, {number % 90 + 10}.5 of 251.0 GB free after claims",
                    },
                ]
            candidates.append(
                {
                    "profile": "p0",
                    "node": node["id"],
                    "fits": False,
                    "chosen": False,
                    "reasons": reasons,
                    "score": [],
                }
            )
        return {
            "model": model["name"],
            "state": model["state"],
            "sentence": model["reason"],
            "wanted": model["wanted"],
            "live": 0,
            "ready": 0,
            "blockers": [],
            "candidates": candidates,
        }

    def answer(self, path: str) -> Plain:
        """The body of ``GET /api/v1/PATH``."""
        if path == "status":
            return self.status
        if path.endswith("/explain"):
            return self.explained()
        return {path: getattr(self, path)}


def page(body: Plain, cursor: str | None, size: int = 500) -> Plain:
    """Part of a list, as the API cuts it."""
    field = next((name for name, value in body.items() if isinstance(value, list)), None)
    if field is None or len(body) > 1 or len(body[field]) <= size:
        return body
    begin = int(cursor or 0)
    cut: Plain = {field: body[field][begin : begin + size]}
    return cut if begin + size >= len(body[field]) else {**cut, "next": str(begin + size)}

"""What people do to a fleet while it is shaken: they scale, edit, hold, restart, stop."""

import random
from collections.abc import Callable
from dataclasses import replace

from controlplane.catalog.model import Model, Scaling
from controlplane.events import Cordon, RestartRequested
from controlplane.planning.candidates import PDU
from llmgw.sim.cluster import Cluster
from llmgw.sim.scenario import GOLD, RACK, RACKS, TIER, external_model, with_args


class People:
    """The kinds of faults that people make, each a method."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng: random.Random = cluster.world.rng("faults")
        self.on = True

    def _tell(self, kind: str, actor: str, text: str = "") -> None:
        self.cluster.world.fault(kind, actor, text)

    def _node(self) -> str:
        return self.rng.choice(list(self.cluster.hosts))

    def _while(self, seconds: float, undo: Callable[[], None]) -> None:
        self.cluster.world.after(seconds, undo)

    def _own_models(self) -> list[Model]:
        return [model for model in self.cluster.durable.catalog.models.values() if model.external is None]

    def scale(self) -> None:
        """A person changes how many replicas a model has."""
        models = self._own_models()
        if models:
            model = self.rng.choice(models)
            least = self.rng.choice((0, 0, 1, 1, 2, 3))
            scaling = Scaling(least, least + self.rng.choice((0, 0, 1)))
            self._tell("scale", "person", f"{model.name} to {scaling.min}..{scaling.max}")
            self.cluster.change_model(model.name, replace(model, scaling=scaling))

    def add_or_remove_model(self) -> None:
        """A person adds a model, or takes one out."""
        spare, models = self.cluster.spare, self._own_models()
        if spare and self.rng.random() < 0.6:
            model = spare.pop()
            self._tell("add-model", "person", model.name)
            self.cluster.change_model(model.name, model)
        elif models:
            model = self.rng.choice(models)
            spare.append(model)
            self._tell("remove-model", "person", model.name)
            self.cluster.change_model(model.name, None)

    def change_profile(self) -> None:
        """A person changes a profile's arguments, or takes a profile out or puts it back."""
        models = self._own_models()
        if not models:
            return
        model = self.rng.choice(models)
        first, *others = model.profiles
        if others and self.rng.random() < 0.5:
            self._tell("remove-profile", "person", f"{first.name} of {model.name}")
            profiles = tuple(others)
        else:
            self._tell("change-profile", "person", f"{first.name} of {model.name}")
            profiles = (with_args(first, (f"--draw={self.rng.randint(0, 99)}",)), *others)
        self.cluster.change_model(model.name, replace(model, profiles=profiles))

    def unenrol(self) -> None:
        """A person removes a node, which revokes its identity; it joins anew later."""
        node = self._node()
        if node in self.cluster.durable.enrolled:
            self._tell("unenrol", node)
            self.cluster.enrol(node, enrolled=False)
            self._while(self.rng.uniform(1.0, 200.0), lambda: self.cluster.enrol(node, enrolled=True))

    def label(self) -> None:
        """A person gives a node other labels, or takes those of people away."""
        node = self._node()
        labels = {}
        if self.rng.random() < 0.7:
            labels[self.rng.choice((RACK, PDU))] = self.rng.choice(RACKS)
        if self.rng.random() < 0.5:
            labels[TIER] = self.rng.choice((GOLD, GOLD, "bronze"))
        self._tell("label", node, str(labels))
        self.cluster.set_labels(node, labels)

    def hold(self) -> None:
        """A person holds a domain, or releases one."""
        domain = f"{self.rng.choice((RACK, RACK, PDU))}={self.rng.choice(RACKS)}"
        holds = dict(self.cluster.durable.holds)
        if holds and self.rng.random() < 0.6:
            domain = self.rng.choice(list(holds))
            del holds[domain]
            self._tell("release", "person", domain)
        else:
            holds[domain] = Cordon("maintenance", "ops", "2027-01-01T00:00:00+00:00")
            self._tell("hold", "person", domain)
        self.cluster.set_holds(holds)

    def serving(self) -> None:
        """A person stops serving, and starts it again later."""
        if not self.cluster.durable.serving.stopped:
            self._tell("serving-stopped", "person")
            self.cluster.set_serving(stopped=True)
            self._while(self.rng.uniform(1.0, 200.0), self._serve_again)

    def _serve_again(self) -> None:
        if self.on:  # else calm did it
            self.cluster.set_serving(stopped=False)

    def restart(self) -> None:
        """A person restarts replicas: of a model, the stale ones, or all."""
        term = self.cluster.term
        if term is None:
            return
        replicas = sorted(term.loop.view.replicas.values(), key=lambda replica: replica.id)
        if not replicas:
            return
        model = self.rng.choice(replicas).model
        how = self.rng.choice(("model", "model", "stale", "all"))
        chosen = [
            replica.id
            for replica in replicas
            if how == "all" or (replica.model == model if how == "model" else replica.stale)
        ]
        in_place = self.rng.random() < 0.2
        self._tell("restart", "person", f"{how}{' in place' if in_place else ''}: {', '.join(chosen)}")
        self.cluster.tell(RestartRequested(tuple(chosen), "ops", "as a test", in_place))

    def provider(self) -> None:
        """An external model comes, goes, gets another key, or loses its key file."""
        models = self.cluster.durable.catalog.models
        name = self.rng.choice(("x0", "x1", "x2"))
        file = f"/keys/{name}"
        what = self.rng.choice(("rotate-key", "rotate-key", "lose-key", "add", "remove"))
        self._tell(f"provider-{what}", "person", name)
        if what == "rotate-key":
            self.cluster.write_key(name)
        elif what == "lose-key":
            self.cluster.durable.key_files.pop(file, None)
        elif what == "add" and name not in models:
            self.cluster.write_key(name)
            self.cluster.change_model(name, external_model(name))
        elif what == "remove" and name in models:
            self.cluster.change_model(name, None)

    def cordon(self) -> None:
        """A person cordons a node, or uncordons it."""
        node = self._node()
        if node in self.cluster.durable.cordons:
            self._tell("uncordon", node)
            self.cluster.set_cordon(node, None)
        else:
            self._tell("cordon", node)
            self.cluster.set_cordon(node, Cordon("maintenance", "ops", "2027-01-01T00:00:00+00:00"))

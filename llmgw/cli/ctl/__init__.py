"""``llmgw ctl``: what the control plane knows, and what it can be told."""

import click

from llmgw.cli.ctl.admin import catalog, events, log_level
from llmgw.cli.ctl.models import explain, models, retry
from llmgw.cli.ctl.nodes import cordon, nodes, uncordon
from llmgw.cli.ctl.replicas import replicas
from llmgw.cli.ctl.status import status
from llmgw.cli.options import example


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order they were added: what is used most comes first."""
        return list(self.commands)


@click.group(cls=_InOrder, epilog=example("llmgw ctl status", "llmgw ctl explain smollm2-135m"))
def ctl() -> None:
    """Look at the fleet and steer it."""


for command in (status, nodes, models, replicas, explain, cordon, uncordon, retry, events, catalog, log_level):
    ctl.add_command(command)

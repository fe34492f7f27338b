"""``python -m controlplane.commands store ...`` is ``llmgw store ...``, and so is ``init``."""

import sys

import click

from controlplane.commands.init import init
from controlplane.commands.removal import add_to
from controlplane.commands.shared import Plainly
from controlplane.commands.store import store


@click.group(cls=Plainly, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Commands that work on the store itself, without a control plane."""


add_to(store)
main.add_command(store)
main.add_command(init)

if __name__ == "__main__":
    main(sys.argv[1:], prog_name="llmgw")

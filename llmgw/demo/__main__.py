"""``python -m llmgw.demo``, which ``make demo`` runs."""

import signal
import sys

# Until the demo takes its signals itself nothing was started: Ctrl-C just ends it.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from llmgw.demo.run import main  # noqa: E402 - it takes a while, in which Ctrl-C must not show a stack

sys.exit(main())

"""``python -m llmgw.demo``, which ``make demo`` runs."""

import sys

from llmgw.demo.run import main

sys.exit(main())

"""``python -m llmgw.cli`` is ``llmgw``."""

from llmgw.cli import main

if __name__ == "__main__":
    main(prog_name="llmgw")

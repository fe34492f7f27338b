"""What the three parts share at run time. Imports nothing but ``llmgw.wire``."""

"""llmgw: serve large language models on an organisation's own machines."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("llmgw")
except PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0+unknown"

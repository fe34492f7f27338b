"""Writes a stand-in for the ``nvidia-smi`` program: it answers ``-L`` and ``-q -x``."""

from pathlib import Path


def install(directory: Path, listing: str, details: str) -> Path:
    """The program's path; its answers lie beside it and may be changed."""
    (directory / "L.txt").write_text(listing)
    (directory / "q.xml").write_text(details)
    program = directory / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f"cd '{directory}' || exit 1\n"
        "[ -e broken ] && { cat broken >&2; exit 9; }\n"
        'case "$*" in\n'
        '  "-L") cat L.txt ;;\n'
        '  "-q -x") cat q.xml ;;\n'
        '  *) echo "unknown option: $*" >&2; exit 2 ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    return program

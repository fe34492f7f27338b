"""The files of the tree as tests of the project see them."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINARY = {".gguf", ".gz", ".png", ".jpg", ".ico", ".woff2"}


def project_files() -> list[Path]:
    """Every file that is, or would be, committed. Needs git, or falls back to a walk."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        names = [name for name in done.stdout.decode().split("\0") if name]
        files = [ROOT / name for name in names]
    else:
        skip = re.compile(
            r"(^|/)(\.venv[^/]*|\.git|\.demo|\.hypothesis|build|dist|__pycache__|\.([a-z_]+_)?cache|[^/]*\.egg-info)(/|$)"
        )
        files = [file for file in ROOT.rglob("*") if not skip.search(str(file.relative_to(ROOT)))]
    return sorted(file for file in files if file.is_file() and not file.is_symlink())


def text_files() -> list[Path]:
    """Those of them that hold text."""
    return [file for file in project_files() if file.suffix not in BINARY]


def documents() -> list[Path]:
    """Every page of documentation."""
    return [file for file in project_files() if file.suffix == ".md"]


def code_blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each fenced block of a page."""
    return re.findall(r"^```([\w-]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)

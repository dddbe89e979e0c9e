"""The README and the pages of docs/ with their fenced blocks, for the tests that keep them true.

What stands behind the fence says what becomes of a block:

    python FILE, yaml FILE   a file of this name in the page's folder
    sh, py                   runs there, in the order of the page, on a service of the page's own
    bash                     lines for a person's own machine: each must be one that can be read
    python, nginx            has a test of its own, see `OWN_TESTS`
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "yaml", "sh", "py", "bash", "nginx"}
# A text in the block, and the test that runs it and looks closer than at the exit code.
OWN_TESTS = {
    "server {": "tests/acceptance/test_pages.py",
    "load_state_dict": "tests/unit/test_readme.py",
    "optuna.load_study": "tests/unit/test_readme.py",
    "study=$api/shell": "tests/acceptance/test_ask_and_tell.py",
    "client.ask(": "tests/acceptance/test_ask_and_tell.py",
    "Client.local(": "tests/acceptance/test_python_client.py",
}


class Block(NamedTuple):
    """One fenced block; `file` is empty where it has no name."""

    page: Path
    language: str
    file: str
    text: str

    @property
    def has_own_test(self) -> bool:
        return any(text in self.text for text in OWN_TESTS)


def text_of(page: str) -> str:
    """A page by its name."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, language, file, text) for language, file, text in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def block_with(language: str, text: str) -> str:
    """The only block of a language that holds a text, on whatever page."""
    (found,) = {block.text for block in BLOCKS if block.language == language and text in block.text}
    return found


def block_of_file(file: str) -> str:
    """The block that stands for a file."""
    (found,) = (block.text for block in BLOCKS if block.file == file)
    return found


def write_files(page: Path, folder: Path) -> None:
    """Writes the files of a page below a folder."""
    for block in blocks_of(page):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")

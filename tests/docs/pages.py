"""The pages of the documentation, and the code in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    file.relative_to(ROOT).as_posix(): file for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
_MARK = re.compile(r"<!-- (not run: .+|slow) -->")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A fenced block. ``mark`` is the comment in the line before it: "slow", "not run: REASON", or nothing."""

    language: str
    text: str
    line: int
    mark: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block; a line that ends in a backslash continues."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found, lines, mark, i = [], PAGES[page].read_text(encoding="utf-8").splitlines(), "", 0
    while i < len(lines):
        opening = re.match(r"(\s*)(```+)(\w*)", lines[i])
        if opening:
            indent, fence, language = opening.groups()
            end = next(j for j in range(i + 1, len(lines)) if lines[j].strip() == fence)
            text = "\n".join(line.removeprefix(indent) for line in lines[i + 1 : end])
            found.append(Block(language, text, i + 1, mark))
            i, mark = end, ""
        elif lines[i].strip():
            marked = _MARK.fullmatch(lines[i].strip())
            mark = marked[1] if marked else ""
        i += 1
    return found


def inline_code(page: str) -> list[str]:
    """The code in the text of a page, outside of fenced blocks."""
    text = PAGES[page].read_text(encoding="utf-8")
    text = re.sub(r"^\s*(```+).*?^\s*\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [code.replace("\\|", "|") for code in _INLINE.findall(text)]

"""Hooks of the documentation's build: generated pages, formulas as MathML, and the check that nothing is remote."""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import command_pages  # noqa: E402
import notebook_pages  # noqa: E402
import settings_page  # noqa: E402

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
IN_VALUE = re.compile(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)")
HYPHENATED_CODE = re.compile(r"<code>(?=[^<\n]*-)([^<\n]{1,32})</code>")
REMOTE = re.compile(
    r"""(?:<(?:script|img|iframe|source|video)\b[^>]*?\bsrc=|<link\b[^>]*?\bhref=)["']?(?:https?:)?//[^>]*"""
)
REMOTE_STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"']*""")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code and the notebooks."""
    pages = {
        "reference/commands.md": command_pages.page(),
        "reference/settings.md": settings_page.page(),
        **notebook_pages.pages(ROOT / "notebooks"),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Replace formulas by MathML, which browsers display without a script; keep values and short code on one line."""
    content = HYPHENATED_CODE.sub(r'<code class="short">\1</code>', content)
    return IN_VALUE.sub("\u00a0", FORMULA.sub(_mathml, content))


def _mathml(found: re.Match[str]) -> str:
    display = "inline" if found[2] == "(" else "block"
    return convert(html.unescape(found[3]).strip(), display=display)


def on_post_build(config: Any) -> None:
    """Fail if a page or style would load something from the network."""
    site = Path(config.site_dir)
    found = [
        f"{file.relative_to(site)}: {match[0][:120]}"
        for pattern, suffix in ((REMOTE, ".html"), (REMOTE_STYLE, ".css"), (REMOTE_STYLE, ".html"))
        for file in sorted(site.rglob(f"*{suffix}"))
        for match in pattern.finditer(file.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("the site would load from the network:\n" + "\n".join(found[:20]))

"""The pages of the documentation site, made of the Markdown that people read on GitHub.

README.md becomes the home page; the table in docs/README.md is the navigation. A link to a file
outside docs/ leads to a copy of it in the site,
so that the site is whole without any repository beside it; a link to a folder leads to a list of
what is in it. What GitHub's Markdown allows and Zensical's (Python-Markdown) does not is written
as both read it: blank lines before lists and tables, four columns for what is inside a list.
Standard library only, so that a test can read the pages without the site builder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import docs_api
from docs_markdown import outside_code, plain
from sources import ROOT

TABLE = "docs/README.md"  # the page with the table of all pages
#: pages that do not stand in docs/ or have another name: place in the checkout → place on the site
BROUGHT = {
    "README.md": "index.md",
    TABLE: "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "QUALITY_DECLARATION.md": "quality-declaration.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/shadow.md": "shadow-gpu.md",
    "vla_ros/shipped/README.md": "model-card.md",
    "test/golden/README.md": "golden-references.md",
}
#: those of them that have no place in that table
MORE = {
    "All pages and commands": "pages.md",
    "Benchmarks": "benchmarks.md",
    "The shadow of a GPU": "shadow-gpu.md",
    "Model card": "model-card.md",
    "Golden references": "golden-references.md",
    "Changelog": "changelog.md",
    "Contributing": "contributing.md",
    "Security": "security.md",
    "Quality declaration": "quality-declaration.md",
}
CONFIG = "docs/zensical.toml"
STYLE = "docs/site.css"
LARGEST = 300_000  # bytes of a file that is copied; of a larger one the name is listed
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BUILT = ("__pycache__", ".egg-info", "/build/", CONFIG)


class PageError(Exception):
    """A page that cannot be put on the site; one line."""


def sections(readme: str) -> dict[str, list[tuple[str, str]]]:
    """The table of docs/README.md: kind → (title, path from docs/) of each page. "how-to, robots":
    pages of the folder how-to that belong together.

    Raises PageError where there is no such table.
    """
    table = readme.partition("\n## Pages\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z][a-z, -]+) \| (.*) \|$", table, re.MULTILINE)
    found = {kind: re.findall(r"\[([^\]]+)\]\(([^)]+)\)", cells) for kind, cells in rows}
    if not found:
        raise PageError(f"{TABLE} has no table of pages under '## Pages'")
    return found


def place(path: str) -> str:
    """Where a file or folder of the checkout is on the site. PageError: a page that is not told."""
    if path in BROUGHT:
        return BROUGHT[path]
    moved = path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
    if (ROOT / path).is_dir():
        return f"{moved}/index.md"
    if moved.startswith("files/") and path.endswith(".md"):
        raise PageError(f"{path} is linked and not on the site: add it to BROUGHT in docs_site.py")
    return moved


def links(text: str) -> Iterator[str]:
    """The targets of all relative links and images outside of code, as written."""
    for part, is_text in outside_code(text):
        for target in _LINK.findall(part) if is_text else ():
            if not re.match(r"[a-z]+:|#", target):
                yield target


def resolved(target: str, page: str) -> str:
    """What a link of ``page`` leads to, relative to the checkout. PageError: nothing is there."""
    path = os.path.normpath(os.path.join(os.path.dirname(page), target.partition("#")[0]))
    if path.startswith("..") or not (ROOT / path).exists():
        raise PageError(f"{page}: the link {target} leads to nothing")
    return path


def page_text(page: str, text: str) -> str:
    """A page as the site has it."""
    here = os.path.dirname(place(page))

    def moved(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        anchor = target.partition("#")[1] + target.partition("#")[2]
        return f"]({os.path.relpath(place(resolved(target, page)), here or '.')}{anchor})"

    parts = (_LINK.sub(moved, part) if is_text else part for part, is_text in outside_code(text))
    return plain("".join(parts))


def pages() -> list[str]:
    """Every Markdown page of the site, relative to the checkout."""
    inside = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))
    return [*BROUGHT, *(page for page in inside if page not in BROUGHT)]


def folder_page(path: str, out: Path) -> None:
    """A list of a folder's files, with a copy of each that is not large."""
    lines = [f"# {path}", ""]
    for file in sorted((ROOT / path).rglob("*")):
        name = file.relative_to(ROOT / path).as_posix()
        if not file.is_file() or any(part in f"/{path}/{name}" for part in _BUILT):
            continue
        size = file.stat().st_size
        small = size <= LARGEST and file.suffix != ".md"
        if small:
            copied(file, out / os.path.dirname(place(path)) / name)
        shown = f"[`{name}`]({name})" if small else f"`{name}`"
        lines.append(f"- {shown} ({size:,} bytes)")
    target = out / place(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def copied(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def navigation() -> list[dict[str, object]]:
    """Zensical's `nav`: the home page, the kinds of the table of pages, and what else there is."""
    readme = (ROOT / TABLE).read_text(encoding="utf-8")
    nav: list[dict[str, object]] = [{"Home": "index.md"}]
    for kind, rows in sections(readme).items():
        listed = [{_capital(title): place(resolved(path, TABLE))} for title, path in rows]
        nav.append({_capital(kind): listed})
    more = {"Python interface": docs_api.PAGE, **MORE}
    nav.append({"More": [{title: page} for title, page in more.items()]})
    return nav


def _capital(title: str) -> str:
    return title[0].upper() + title[1:]


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def stage(out: Path) -> Path:
    """Write pages, the files that they lead to and the configuration; returns the latter.

    Raises PageError for a link that leads to nothing.
    """
    shutil.rmtree(out, ignore_errors=True)
    folder = out / "pages"
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        target = folder / place(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page_text(page, text), encoding="utf-8")
        for path in {resolved(target, page) for target in links(text)} - set(pages()):
            if (ROOT / path).is_dir():
                folder_page(path, folder)
            else:
                copied(ROOT / path, folder / place(path))
    (folder / docs_api.PAGE).write_text(plain(docs_api.api_page()), encoding="utf-8")
    copied(ROOT / STYLE, folder / place(STYLE))
    config = (ROOT / CONFIG).read_text(encoding="utf-8")
    made = re.sub(r"^nav = \[\]$", lambda _: f"nav = {_toml(navigation())}", config, flags=re.M)
    (out / "zensical.toml").write_text(made, encoding="utf-8")
    return out / "zensical.toml"

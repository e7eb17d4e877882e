"""Every link of the documentation leads somewhere, every page stands in the table of pages, and the
site is made of the same text."""

from __future__ import annotations

import re

import pytest

from support.docs.pages import ROOT, anchors, docs_markdown, docs_site, prose, read, slug

PAGES = docs_site.pages()


def links(text: str) -> list[str]:
    """The targets of all links of a text but those to other sites."""
    outside = re.sub(r"`[^`]*`", "`", prose(text))
    found = re.findall(r"\]\(([^)\s]+)\)", outside)
    return [target for target in found if not re.match(r"(https?|mailto):", target)]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    wrong = []
    for target in links(read(page)):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists():
            wrong.append(f"{target}: nothing is there")
        elif anchor and file.suffix == ".md":
            name = file.resolve().relative_to(ROOT).as_posix()
            if anchor not in anchors(name):
                wrong.append(f"{target}: {name} has no such heading")
    assert not wrong, f"{page} links to\n" + "\n".join(wrong)


@pytest.mark.parametrize("robot", sorted(path.stem for path in (ROOT / "config/robots").iterdir()))
def test_a_robots_page_is_ten_lines_and_five_decisions(robot):
    """The fifth is the checkpoint. What moves it is one file of `vla-ros setup`."""
    page = read(f"docs/how-to/{robot}.md")
    block = page.partition("<!-- needs: ROS 2 -->\n```\n")[2].partition("```")[0]
    lines = block.splitlines()
    assert 5 <= len(lines) <= 10
    assert any(re.match(rf"vla-ros setup \S+ --robot {robot}$", line) for line in lines)
    table = page.partition("| decide |")[2].partition("\n\n")[0]
    assert 1 <= len(re.findall(r"^\| (?!-)", table, re.M)) <= 4
    assert "the checkpoint is the fifth" in page
    assert "**What ran**" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_link_stays_in_the_checkout(page):
    """A link from the root of a disk or a site works for nobody else."""
    assert not [target for target in links(read(page)) if target.startswith(("/", "~"))]


def test_the_table_of_pages_has_every_page_and_no_other():
    table = docs_site.sections(read(docs_site.TABLE))
    listed = [f"docs/{path}" for rows in table.values() for _, path in rows]
    pages = [page for page in PAGES if page.startswith("docs/") and page != docs_site.TABLE]
    assert sorted(listed) == sorted(set(listed))
    missing = sorted(set(pages) - set(listed))
    assert not missing, f"put {', '.join(missing)} into the table of {docs_site.TABLE}"
    assert not set(listed) - set(pages)


def test_a_page_stands_under_its_kind():
    for kind, rows in docs_site.sections(read(docs_site.TABLE)).items():
        folder = kind.partition(",")[0]
        assert [path for _, path in rows if not path.startswith(f"{folder}/")] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    docs_site.stage(out)
    return out


def test_every_link_of_the_site_stays_in_it(site):
    pages = sorted((site / "pages").rglob("*.md"))
    assert len(pages) >= len(PAGES)
    wrong = []
    for page in pages:
        for target in links(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            file = (page.parent / path).resolve() if path else page
            if not file.is_file() or site not in file.parents:
                wrong.append(f"{page.relative_to(site)}: {target}")
    assert not wrong


def test_the_site_is_told_all_that_it_has(site):
    config = (site / "zensical.toml").read_text(encoding="utf-8")
    listed = re.findall(r'= "([^"]+\.md)"', config)
    assert sorted(listed) == sorted({*map(docs_site.place, PAGES), docs_site.docs_api.PAGE})
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    nav = tomllib.loads(config)["project"]["nav"]
    assert [next(iter(entry)) for entry in nav] == [
        "Home", "Tutorial", "How-to, robots", "How-to, other machines", "How-to, checkpoints",
        "How-to, data", "How-to, measuring", "Reference", "Explanation", "Lab", "More",
    ]  # fmt: skip


def test_the_python_interface_is_that_of_the_sources(site):
    page = (site / "pages" / docs_site.docs_api.PAGE).read_text(encoding="utf-8")
    for name in ("Policy", "PolicySpec", "Observation", "Inference", "ActionSpace", "Family"):
        assert re.search(rf"^### {name}$", page, re.MULTILINE), name
    for part in page.split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        assert len(text.partition("\n```\n")[2].strip()) > 10, f"{name} says nothing of itself"


def test_a_page_that_links_to_nothing_is_refused():
    with pytest.raises(docs_site.PageError, match=r"docs/x\.md: the link gone\.md leads to noth"):
        docs_site.page_text("docs/x.md", "see [this](gone.md)")


def test_a_link_to_a_file_outside_leads_to_its_copy():
    text = docs_site.page_text("docs/how-to/x.md", "[a](../../Makefile) `[b](no)` [c](#there)")
    assert text == "[a](../files/Makefile) `[b](no)` [c](#there)\n"


def test_a_readme_of_pages_that_has_no_table_is_refused():
    with pytest.raises(docs_site.PageError, match="no table of pages"):
        docs_site.sections("# nothing\n")


@pytest.mark.parametrize(
    ("written", "read_by_both"),
    [
        ("a\n- b\n- c", "a\n\n- b\n- c"),
        ("a\n| b |\n|---|\n| c |", "a\n\n| b |\n|---|\n| c |"),
        (
            "1. a\n   ```\n   b\n     c\n   ```\n   d",
            "1. a\n\n    ```sh\n    b\n      c\n    ```\n\n    d",
        ),
        ("- a\n  - b\n- c\n\nd", "- a\n    - b\n- c\n\nd"),
        ("- a\n  b\nc", "- a\n    b\n    c"),
        ("1. a\n\n   b\n2. c", "1. a\n\n    b\n\n2. c"),
        ("<!-- needs: network -->\n```yaml\n- a\n```", "```yaml\n- a\n```\n"),
    ],
)
def test_markdown_is_written_as_both_read_it(written, read_by_both):
    assert docs_markdown.plain(written) == read_by_both + "\n"


def test_text_and_code_are_told_apart():
    text = "a `b` c\n```\nd `e`\n```\nf"
    parts = list(docs_markdown.outside_code(text))
    assert "".join(part for part, _ in parts) == text
    assert "".join(part for part, is_text in parts if is_text) == "a  c\n\nf"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("In C++", "in-c"),
        ("Late: chunks that come late", "late-chunks-that-come-late"),
        ("`auto`, and [π0](x.md)", "auto-and-π0"),
    ],
)
def test_anchors_are_those_of_github(heading, anchor):
    assert slug(heading) == anchor


def test_the_glossary_is_in_order_and_leads_on():
    """Each word once, in the order of the alphabet within its part, with a link."""
    text = read("docs/reference/glossary.md")
    words: list[str] = []
    for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
        rows = [row.strip("| ").split(" | ") for row in part.splitlines() if row.startswith("| ")]
        linked = [re.fullmatch(r"\[(.+)\]\(.+\)", row[0]) for row in rows[1:]]
        assert all(linked)
        listed = [word[1].strip("`").lower() for word in linked if word]
        assert listed == sorted(listed)
        words += listed
    assert len(words) == len(set(words)) > 40

"""Every paper that is named has a citation, and every citation can be followed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/papers.md"
GENERATED = ROOT / "docs/reference/parameters.md"  # from the nodes' own tables
CITED = PAGE.read_text(encoding="utf-8")
ENTRIES = {
    row.split("**")[1]: row for row in CITED.splitlines() if row.startswith("| **")
}  # name → its row
READ = [ROOT / "README.md", ROOT / "vla_ros/shipped/README.md", ROOT / "benchmarks/README.md"]
READ += sorted((ROOT / "docs").rglob("*.md"))
CODE = sorted((ROOT / "vla_ros").rglob("*.py"))

#: how papers and the models and methods they are known by are written in running text
NAMES = re.compile(
    r"(?<![\w/:.-])"
    r"(OpenVLA-OFT|OpenVLA|MiniVLA|SmolVLA|Spec-?VLA|PD-VLA|BitVLA|VLASH|\w+Spec|ActionFlow"
    r"|EAGLE(?:-[123])?|ETH report|GenZ|realtime-vla|vla\.cpp|FlashAttention|HeiSD|KERV"
    r"|π0(?:\.5)?|RTC|GR00T|Evo-1|LIBERO|robosuite|Ctrl-World|DAgger|DART|Muon|Wilson"
    r"|Llama[- ]2|Qwen2|DINOv2|SigLIP)"
    r"(?![\w/]|-\d|\.\w)"
)
ALIASES = {"SpecVLA": "Spec-VLA", "Llama-2": "Llama 2"}


def named(text: str) -> set[str]:
    prose = re.sub(r"```.*?```|`[^`]*`|https?://\S+", " ", text, flags=re.DOTALL)
    return {ALIASES.get(name, name) for name in NAMES.findall(prose)}


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_paper_that_a_page_names_is_cited(path):
    missing = named(path.read_text(encoding="utf-8")) - ENTRIES.keys()
    assert not missing, f"{path.relative_to(ROOT)} names {missing}: add them to {PAGE.name}"


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_that_names_papers_leads_to_their_citations(path):
    text = path.read_text(encoding="utf-8")
    if path in (PAGE, GENERATED) or not named(text):
        return
    where = f"{path.relative_to(ROOT)} names {', '.join(sorted(named(text)))}"
    assert re.search(r"\]\([^)]*papers\.md[#)]", text), f"{where} and has no link to {PAGE.name}"


def test_a_link_to_a_citation_leads_to_the_paper():
    """[OpenVLA](…/papers.md#models): there is such a part of the page, and it has this paper."""
    parts = re.split(r"^## (.+)$", CITED, flags=re.MULTILINE)[1:]
    page = dict(zip([title.lower() for title in parts[::2]], parts[1::2], strict=True))
    for path in READ:
        text = path.read_text(encoding="utf-8")
        for shown, target, part in re.findall(r"\[([^\]]+)\]\(([^)]*papers\.md)#([\w-]+)\)", text):
            assert (path.parent / target).resolve() == PAGE
            name = re.split(r" et al|,", ALIASES.get(shown, shown))[0]
            assert name in page[part], f"{path.relative_to(ROOT)}: {shown} is not in #{part}"


def test_what_the_code_cites_is_on_the_page():
    missing = []
    for path in (*CODE, *READ):
        text = path.read_text(encoding="utf-8")
        cited = re.findall(r"([A-Z]\w+) et al\b", text)
        cited += re.findall(r"arXiv[: ](\d{4}\.\d{4,5})", text)
        missing += [f"{path.relative_to(ROOT)}: {one}" for one in cited if one not in CITED]
    assert not missing


@pytest.mark.parametrize("name", ENTRIES)
def test_a_citation_has_author_title_year_and_a_way_to_it(name):
    row = ENTRIES[name]
    assert len(row.split("|")) == 5
    if name == "ETH report":
        assert "a public link is not known to us" in row
        return
    assert re.search(r"\b(19|20)\d\d\b", row)
    assert row.count("“") + row.count('"') >= 2
    for shown, target in re.findall(r"\[([^\]]+)\]\((https://[^)]+)\)", row):
        kind, _, identifier = shown.partition(" ")
        expected = {
            "arXiv": f"https://arxiv.org/abs/{identifier}",
            "doi": f"https://doi.org/{identifier}",
        }
        assert target.rstrip("/") == expected.get(kind, f"https://{shown}")
    assert "](https://" in row


def test_papers_stand_once_on_the_page():
    found = re.findall(r"arXiv (\d{4}\.\d{4,5})\]", CITED)
    assert len(found) == len(set(found)) > 20

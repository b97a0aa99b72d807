"""The documents tell the truth about the tree: links lead somewhere, the tour can be walked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _prose(path: Path) -> str:
    """A document without its code blocks."""
    return FENCE.sub("", path.read_text())


def _anchors(path: Path) -> set[str]:
    """The names under which a document's headings can be linked to."""
    headings = re.findall(r"^#+ +(.+?)\s*$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(_prose(document)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_of_this_tree_that_a_document_names_exists(document: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks|scripts)/[\w./-]+)`", _prose(document))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_tour_has_seven_stops_in_order_and_each_exists() -> None:
    tour = ROOT / "docs" / "tour.md"
    stops = re.findall(r"^## (\d+)\. \[[^\]]*\]\(([^)]+)\)", tour.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in stops] == [1, 2, 3, 4, 5, 6, 7]
    assert all((tour.parent / path).resolve().is_file() for _, path in stops)


def test_every_page_of_the_documentation_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        if page.suffix == ".md":
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(_prose(page))]
    assert not [
        str(page.relative_to(ROOT)) for page in DOCUMENTS if page not in reached and "benchmarks" not in page.parts
    ]

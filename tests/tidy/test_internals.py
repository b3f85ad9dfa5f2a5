"""ARCHITECTURE.md and docs/internals against the checkout: what they name exists."""

import re
from pathlib import Path

import pytest
from generate_drawings import DRAWINGS, ROOT, digest_line, sources

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
INTERNALS = sorted((ROOT / "docs/internals").glob("*.md"))
FOLDERS = ("managed_ledger", "pybroker", "tests", "spec", "docs")
FILES = [
    f"/{path.relative_to(ROOT)}"
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md")
]
NAMED = re.compile(r"`([\w./-]*\w\.py)`")
LAYOUT = re.compile(r"^```\n(managed_ledger/.*?)^```$", re.MULTILINE | re.DOTALL)


def missing(text: str) -> list[str]:
    """The modules that the text names by the end of their path, and that are not there."""
    return [name for name in NAMED.findall(text) if not any(f.endswith(f"/{name}") for f in FILES)]


def slashes(name: str) -> list[int]:
    return [at for at, character in enumerate(name) if character == "/"]


def folders_of(layout: str) -> list[str]:
    """The folders that the indented lines of the layout name."""
    above, found = [""], []
    for line in layout.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"\s{0,4}((?:[\w./]+ )*[\w./]+/)(?=\s|$)", line)
        if names is None or depth > 2:
            continue
        del above[depth + 1 :]
        each = [name for name in names[1].split() if name.endswith("/")]
        found += [above[depth] + name[: end + 1] for name in each for end in slashes(name)]
        above.append(above[depth] + each[0])
    return found


def test_the_page_is_short_enough_to_be_read() -> None:
    assert len(ARCHITECTURE.read_bytes()) <= 15_000, "move it to docs/internals"


def test_every_module_that_a_page_names_is_there() -> None:
    pages = (ARCHITECTURE, *INTERNALS, ROOT / "docs/contributing.md")
    assert not {page.name: names for page in pages if (names := missing(page.read_text()))}


def test_a_module_that_is_not_there_is_found() -> None:
    assert missing("see `dispatch/lives.py`, `dispatch/deaths.py`") == ["dispatch/deaths.py"]


def test_every_folder_of_the_layout_is_there() -> None:
    layout = LAYOUT.search(ARCHITECTURE.read_text())
    assert layout is not None
    folders = folders_of(layout[1])
    assert "pybroker/broker/dispatch/" in folders and len(folders) > 50
    assert not [name for name in folders if not (ROOT / name).is_dir()]


def test_every_package_is_in_the_layout() -> None:
    layout = LAYOUT.search(ARCHITECTURE.read_text())
    assert layout is not None
    folders = set(folders_of(layout[1]))
    packages = {path.parent for path in (ROOT / "pybroker").glob("*/__init__.py")}
    of_broker = {path.parent for path in (ROOT / "pybroker/broker").glob("*/__init__.py")}
    named = {f"{path.relative_to(ROOT)}/" for path in packages | of_broker}
    assert not sorted(named - folders)


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_a_drawing_is_that_of_its_source(source: Path) -> None:
    drawn = source.with_suffix(".svg").read_text()
    assert drawn.endswith(digest_line(source)), f"run `make drawings`: {source.name} has changed"


def test_every_page_has_a_drawing_and_every_drawing_a_page() -> None:
    shown = {
        page: set(re.findall(r"\]\((?:internals/)?drawings/([\w-]+)\.svg\)", page.read_text()))
        for page in (*INTERNALS, ROOT / "docs/concepts.md")
    }
    assert [page.stem for page, drawings in shown.items() if not drawings] == ["index"]
    assert {path.stem for path in DRAWINGS.iterdir()} == set().union(*shown.values())


def test_links_between_documents_lead_somewhere() -> None:
    pages = (ARCHITECTURE, *sorted((ROOT / "docs").glob("*.md")), *INTERNALS)
    broken = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists() and not target.startswith("reference/")
    ]
    assert not broken

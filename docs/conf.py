"""Configuration of the documentation site: `make docs` builds it to build/docs."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from reference_pages import write_reference

import pybroker

project = "pybroker"
author = "The pybroker maintainers"
release = pybroker.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["images"]

html_theme = "furo"
html_title = "pybroker"
html_copy_source = False
html_extra_path = ["../llms.txt"]
html_show_copyright = False
highlight_language = "text"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "inherited-members": True}
# Types in signatures belong to many internal modules, which have no page.
nitpick_ignore_regex = [(r"py:.*", r".*")]

_CODE = re.compile(r"`+([^`]+)`+")
_MARKUP = re.compile(r"([*|\\]|_(?=\W|$))")


def as_restructured_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text: paragraphs with `code`, and examples, which are indented."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(map(_example_or_text, paragraphs)).splitlines()


def _example_or_text(paragraph: str) -> str:
    if paragraph.startswith("    "):
        return f".. code-block:: python\n\n{paragraph}"
    pieces = _CODE.split(paragraph)
    for index, piece in enumerate(pieces):
        is_code = index % 2
        pieces[index] = f"``{' '.join(piece.split())}``" if is_code else _MARKUP.sub(r"\\\1", piece)
    return "".join(pieces)


def leave_out_builtins(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """What a class inherits from Python's own is known."""
    module = str(getattr(thing, "__module__", None) or "pybroker")
    return True if callable(thing) and not module.startswith("pybroker") else None


_PAGES = {"ARCHITECTURE": "architecture", "CHANGELOG": "changelog", "README": "index"}
_FOLDER_LINK = re.compile(r"\[([^\]]+)\]\(\.\./(?:[^)]*/[^).]*|examples/[^)]*)\)")


def link_within_the_site(app: Any, page: str, source: list[str]) -> None:
    """Links are written for those who read the files; folders of the checkout have no page."""
    up = "../" * page.count("/")
    for name, target in _PAGES.items():
        source[0] = source[0].replace(f"](../{up}{name}.md", f"]({up}{target}.md")
    source[0] = _FOLDER_LINK.sub(r"`\1`", source[0])


def list_the_rest(app: Any, page: str, source: list[str]) -> None:
    """A page that no list of index.md names is listed at the end, under Reference."""
    if page == "index":
        named = set(source[0].split())
        pages = (path.stem for path in sorted(Path(app.srcdir).glob("*.md")))
        rest = "".join(f"{name}\n" for name in pages if name not in {*named, "index"})
        source[0] = source[0].rstrip().removesuffix(":::") + rest + ":::\n"


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: write_reference(Path(app.srcdir) / "reference"))
    app.connect("source-read", link_within_the_site)
    app.connect("source-read", list_the_rest)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("autodoc-skip-member", leave_out_builtins)

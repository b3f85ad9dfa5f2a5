"""Scripts, styles and the icon, from the package. Each name changes with the content, so browsers
may cache them forever.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

ASSETS: Final = "/console/assets"
WITHOUT_LOGIN: Final = ("console.css",)
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    found = {}
    for file in (files("pybroker.console") / "static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            found[file.name] = Asset(content, media_type, version)
    return found


def asset_url(name: str) -> str:
    return f"{ASSETS}/{name}?v={assets()[name].version}"

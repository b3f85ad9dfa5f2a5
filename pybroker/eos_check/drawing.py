"""Draws the counter-example as a self-contained HTML page with a sequence diagram in SVG.

The diagram has two lifelines, the pipeline's and the broker's, and an arrow for each row of the
timeline. Crashes are red lines. All text from outside is escaped.
"""

from collections.abc import Sequence
from html import escape as escape_markup
from typing import Final

from pybroker.eos_check.timeline import Arrow, Row
from pybroker.eos_check.words import printable

_WIDTH: Final = 1180
_PIPELINE_X: Final = 140
_BROKER_X: Final = 420
_TEXT_X: Final = 450
_ROW_HEIGHT: Final = 22
_TOP: Final = 50
_TEXT_CHARACTERS: Final = 110

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem;
  color: #1c2430; background: #fff }
h1 { font-size: 1.4rem } .bad { color: #b3261e } .good { color: #1b6e3c }
code, pre, svg text { font-family: ui-monospace, monospace; font-size: 12px }
pre { overflow-x: auto; background: #f5f6f8; padding: 1rem }
svg { width: 100%; height: auto }
svg text { fill: #1c2430 } svg .life { stroke: #8a94a3; stroke-width: 2 }
svg .arrow { stroke: #2458a6; stroke-width: 1.5; marker-end: url(#head) }
svg .concerned text { fill: #b3261e; font-weight: bold }
svg .concerned .arrow { stroke: #b3261e }
svg .fault { stroke: #b3261e; stroke-width: 3 }
"""


def page(
    title: str, findings: Sequence[str], facts: Sequence[str], told: Sequence[Row], is_good: bool
) -> str:
    """The page. `findings` are the broken promises, if any."""
    verdict = "good" if is_good else "bad"
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f'<h1 class="{verdict}">{escape(title)}</h1>',
        _list(findings),
        _list(facts),
    ]
    if told:
        parts += ["<h2>What happened</h2>", drawn(told)]
    return "\n".join([*parts, "</body></html>", ""])


def drawn(told: Sequence[Row]) -> str:
    """The timeline as an SVG element."""
    height = _TOP + _ROW_HEIGHT * (len(told) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Sequence of commands between the pipeline and the broker">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="context-stroke"/></marker></defs>',
    ]
    for x, name in ((_PIPELINE_X, "pipeline"), (_BROKER_X, "broker")):
        parts.append(f'<text x="{x}" y="25" text-anchor="middle">{name}</text>')
        parts.append(f'<line class="life" x1="{x}" y1="35" x2="{x}" y2="{height - 10}"/>')
    for number, row in enumerate(told):
        parts.append(_drawn_row(row, _TOP + _ROW_HEIGHT * (number + 0.5)))
    return "\n".join([*parts, "</svg>"])


def _drawn_row(row: Row, y: float) -> str:
    text = row.text if len(row.text) <= _TEXT_CHARACTERS else row.text[:_TEXT_CHARACTERS] + "…"
    line = ""
    if row.arrow is Arrow.FAULT:
        line = f'<line class="fault" x1="90" y1="{y}" x2="{_BROKER_X + 20}" y2="{y}"/>'
    elif row.arrow is not Arrow.NOTE:
        ends = (_PIPELINE_X + 3, _BROKER_X - 3)
        start, end = ends if row.arrow is Arrow.TO_BROKER else ends[::-1]
        line = f'<line class="arrow" x1="{start}" y1="{y}" x2="{end}" y2="{y}"/>'
    concerned = ' class="concerned"' if row.concerned else ""
    return (
        f"<g{concerned}><title>{escape(row.text)}</title>"
        f'<text x="10" y="{y + 4}">{row.at_s:.3f} s</text>{line}'
        f'<text x="{_TEXT_X}" y="{y + 4}">{escape(text)}</text></g>'
    )


def escape(text: str) -> str:
    return escape_markup(printable(text))


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""

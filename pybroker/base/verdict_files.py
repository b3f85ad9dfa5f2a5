"""A verdict as JSON, and as JUnit's XML, for programs that collect the results of tests."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

# What XML 1.0 cannot contain, even escaped.
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`exit_code`: 0 for success, 1 if something was found, 2 if it could not be judged."""

    tool: str
    name: str  # of what was tested
    title: str  # the verdict in a few words
    exit_code: int
    seconds: float = 0.0
    findings: Sequence[str] = ()
    text: str = ""  # what happened, for people
    facts: Mapping[str, Any] = field(default_factory=dict)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the verdict to FILE, as JSON"
    )
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="also write the verdict to FILE, as JUnit's XML"
    )


def require_writable(options: argparse.Namespace) -> None:
    """Raises OSError before minutes of work, if a file cannot be written."""
    for path in (options.json, options.junit):
        if path is not None:
            path.open("a").close()


def write(options: argparse.Namespace, verdict: Verdict) -> None:
    """Writes the files that the options name. Raises OSError."""
    if options.json is not None:
        options.json.write_text(as_json(verdict), "utf-8")
    if options.junit is not None:
        options.junit.write_text(as_junit(verdict), "utf-8")


def as_json(verdict: Verdict) -> str:
    body = {
        "tool": verdict.tool,
        "name": verdict.name,
        "verdict": verdict.title,
        "exitCode": verdict.exit_code,
        "seconds": round(verdict.seconds, 3),
        "findings": list(verdict.findings),
        **verdict.facts,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def as_junit(verdict: Verdict) -> str:
    """One test case: it passes, fails, or has an error if nothing could be judged."""
    bad = {1: "failure", 2: "error"}.get(verdict.exit_code, "")
    seconds = f"{verdict.seconds:.3f}"
    about = {"name": verdict.tool, "time": seconds, "tests": "1"}
    about |= {"failures": str(int(bad == "failure")), "errors": str(int(bad == "error"))}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", about)
    case = ElementTree.SubElement(
        suite, "testcase", classname=verdict.tool, name=_clean(verdict.name), time=seconds
    )
    if bad:
        message = _clean(verdict.findings[0] if verdict.findings else verdict.title)
        ElementTree.SubElement(case, bad, message=message).text = _clean(verdict.text)
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(verdict.text)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False) + "\n"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("�", text)

"""Writes settings from the environment into a file of `key=value` lines, for two commands."""

from collections.abc import Mapping
from pathlib import Path


def apply(path: Path, environment: Mapping[str, str], prefix: str, bare: bool) -> None:
    """`bare`: variables without the prefix count, too, if the file has a key of that name."""
    lines = path.read_text().splitlines()
    places = {
        line.partition("=")[0].strip(): number
        for number, line in enumerate(lines)
        if "=" in line and not line.lstrip().startswith("#")
    }
    chosen = {name: environment[name] for name in sorted(environment) if bare and name in places}
    for name in sorted(environment):
        if name.startswith(prefix) and name != prefix:
            chosen[name.removeprefix(prefix)] = environment[name]
    for key, value in chosen.items():
        text = " ".join(f"{key}={value}".splitlines())  # a value must not add lines
        if key in places:
            lines[places[key]] = text
        else:
            lines.append(text)
        print(f"[{path}] {'Applying' if key in places else 'Adding'} config {key}")
    path.write_text("\n".join(lines) + "\n")

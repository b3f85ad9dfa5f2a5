"""TopicPattern: matches like Python's regular expressions, and is never slow."""

import random
import re

import pytest

from pybroker.broker.topic_lists.pattern import MAX_POSITIONS, BadPattern, TopicPattern

PIECES = ["a", "b", ".", r"\w", r"\d", "[ab]", "[^a]", "[a-c]", "(a|b)", "(?:ab)", "(a|bc)"]
PIECES += [r"\.", "-", "(ab?|c)", "1", "()", "(|a)", r"[\w-]", r"[\d.]", "(?P<n>a)"]
QUANTIFIERS = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{0}"]


def a_pattern(rng: random.Random) -> str:
    text = "".join(rng.choice(PIECES) + rng.choice(QUANTIFIERS) for _ in range(rng.randint(0, 5)))
    if rng.random() < 0.3:
        text = f"({text}){rng.choice(QUANTIFIERS)}|{rng.choice(PIECES)}"
    return text.replace("(?P<n>a)", "(a)") if text.count("(?P<n>a)") > 1 else text


@pytest.mark.slow
def test_it_matches_what_pythons_own_do() -> None:
    rng = random.Random(20)
    for _ in range(3000):
        text = a_pattern(rng)
        pattern = TopicPattern(text)
        for _ in range(5):
            name = "".join(rng.choice("abc1.-") for _ in range(rng.randint(0, 7)))
            expected = re.fullmatch(text, name, re.ASCII | re.DOTALL) is not None
            assert pattern.matches(name) == expected, (text, name)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("public/default/.*", "public/default/t", True),
        ("persistent://public/default/t-[0-9]+", "public/default/t-17", True),
        ("^public/default/t$", "public/default/t", True),
        (r"\Qa.b+\E", "a.b+", True),
        (r"\Qa.b+\E", "axb+", False),
        ("(?i)ORDERS-.", "orders-7", True),
        ("(?<name>a)b", "ab", True),
        ("ä+", "ää", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_names_are_matched_whole(text: str, name: str, expected: bool) -> None:
    assert TopicPattern(text).matches(name) is expected


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a**",
        "*a",
        "[a",
        "[z-a]",
        "a{2,1}",
        "a{",
        "(?=a)",
        "(?!a)",
        r"(a)\1",
        r"a\b",
        "a++",
        "a^b",
        "a$b",
        "[a[b]]",
        "[a&&b]",
        "\\",
        "a{9999}",
        r"\p{L}",
        r"\Qa\E+",
        "(?<1>a)",
        "((a)",
    ],
)
def test_what_it_cannot_do_is_refused(text: str) -> None:
    with pytest.raises(BadPattern):
        TopicPattern(text)


def test_what_stands_for_too_much_is_refused() -> None:
    for text in (f"a{{{MAX_POSITIONS + 1}}}", "((a{30}){30}){30}", "a" * 1001):
        with pytest.raises(BadPattern):
            TopicPattern(text)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|aa)+b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)b"])
def test_work_grows_with_the_name_and_not_more(text: str) -> None:
    """Python's own would run longer than the age of the universe."""
    pattern = TopicPattern(text)
    assert not pattern.matches("a" * 1000)
    assert pattern.steps < 5000

"""Prometheus' text format."""

import gc

from pybroker.base.metrics import SAMPLES_A_PIECE, Exposition, Metric

NAMES = ("a", "a_total", "b", *(f"name_{number}" for number in range(60)))
TABLE = {
    name: Metric(name, "counter" if name == "a_total" else "gauge", (), f"What {name} is.", "")
    for name in NAMES
}


def test_samples_of_one_name_stand_together_under_their_type() -> None:
    exposition = Exposition({"cluster": "standalone"}, TABLE)
    exposition.add("a_total", 1, exposition.labels(topic="x"))
    exposition.add("b", 0.5)
    exposition.add("a_total", 2, exposition.labels(topic="y"))
    assert exposition.render().splitlines() == [
        "# HELP a_total What a_total is.",
        "# TYPE a_total counter",
        'a_total{cluster="standalone",topic="x"} 1',
        'a_total{cluster="standalone",topic="y"} 2',
        "# HELP b What b is.",
        "# TYPE b gauge",
        'b{cluster="standalone"} 0.5',
    ]


def test_hostile_label_values_are_escaped() -> None:
    exposition = Exposition({}, TABLE)
    exposition.add("a", 1, exposition.labels(topic='q"\\\n'))
    assert exposition.render().splitlines()[2] == r'a{topic="q\"\\\n"} 1'


def test_large_counters_keep_every_digit() -> None:
    exposition = Exposition({}, TABLE)
    exposition.add("a", 12345678901234567)
    assert exposition.render().splitlines()[2] == "a{} 12345678901234567"


def test_many_samples_come_in_pieces() -> None:
    exposition = Exposition({}, TABLE)
    for number in range(1200):
        exposition.add("a", number)
    assert [piece.count("\n") for piece in exposition.pieces()] == [2, 500, 500, 200]


def test_what_the_garbage_collector_looks_at_does_not_grow_with_the_samples() -> None:
    """A collection traverses every young list, whatever it contains."""
    exposition = Exposition({}, TABLE)
    for number in range(20 * SAMPLES_A_PIECE):
        exposition.add("a", number + 0.5)
    seen, found = list[object](), list[object]([exposition])
    while found:
        seen += found
        found = [each for each in gc.get_referents(*found) if not isinstance(each, type)]
    assert len(seen) < 2 * SAMPLES_A_PIECE


def test_names_that_grow_together_do_not_become_pieces_at_the_same_time() -> None:
    exposition, names = Exposition({}, TABLE), NAMES[-60:]
    for number in range(2 * SAMPLES_A_PIECE):
        for name in names:
            exposition.add(name, number)
    pieces = [piece for piece in exposition.pieces() if not piece.startswith("#")]
    first = {piece.partition("{")[0]: piece.count("\n") for piece in reversed(pieces)}
    assert len(set(first.values())) == len(names)

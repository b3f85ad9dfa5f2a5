"""The text format of Prometheus."""

from pybroker.base.metrics import Exposition


def test_samples_of_one_name_stand_together_under_their_type() -> None:
    exposition = Exposition({"cluster": "standalone"})
    exposition.add("a_total", "counter", 1, exposition.labels(topic="x"))
    exposition.add("b", "gauge", 0.5)
    exposition.add("a_total", "counter", 2, exposition.labels(topic="y"))
    assert exposition.render().splitlines() == [
        "# TYPE a_total counter",
        'a_total{cluster="standalone",topic="x"} 1',
        'a_total{cluster="standalone",topic="y"} 2',
        "# TYPE b gauge",
        'b{cluster="standalone"} 0.5',
    ]


def test_hostile_label_values_are_escaped() -> None:
    exposition = Exposition({})
    exposition.add("a", "gauge", 1, exposition.labels(topic='q"\\\n'))
    assert exposition.render().splitlines()[1] == r'a{topic="q\"\\\n"} 1'


def test_large_counters_keep_every_digit() -> None:
    exposition = Exposition({})
    exposition.add("a", "counter", 12345678901234567)
    assert exposition.render().splitlines()[1] == "a{} 12345678901234567"


def test_many_samples_come_in_pieces() -> None:
    exposition = Exposition({})
    for number in range(1200):
        exposition.add("a", "counter", number)
    assert [piece.count("\n") for piece in exposition.pieces()] == [1, 500, 500, 200]

"""The history of a seed in EDN, for outside checkers."""

import re

from checks.edn import elle_history
from checks.history import History, Outcome, Read, Sent
from sim_seed import Simulation


def test_a_transaction_is_one_operation_and_a_topic_is_read_in_the_end() -> None:
    history = History()
    txn = history.begin("t")
    for value in ("a", 'b"'):
        history.send(Sent(value, "in", "p", 0, txn=txn, outcome=Outcome.DONE))
    txn.commit, txn.commit_heard = Outcome.DONE, history.turn()
    history.send(Sent("c", "in", "p", 0, asked=history.turn()))
    logs = {"in-0": [Read("in-0", (0, 0, 0), "a")], "in-1": [Read("in-1", (0, 0, 0), 'b"')]}
    assert list(elle_history(history, logs)) == [
        "{:index 0, :time 0, :type :invoke, :process 0, :f :txn, "
        ':value [[:append "in-0" "a"] [:append "in-1" "b\\""]]}',
        "{:index 1, :time 1, :type :ok, :process 0, :f :txn, "
        ':value [[:append "in-0" "a"] [:append "in-1" "b\\""]]}',
        '{:index 2, :time 2, :type :invoke, :process 1, :f :txn, :value [[:append "in" "c"]]}',
        '{:index 3, :time 3, :type :info, :process 1, :f :txn, :value [[:append "in" "c"]]}',
        '{:index 4, :time 4, :type :invoke, :process 2, :f :txn, :value [[:r "in-0" ["a"]]]}',
        '{:index 5, :time 5, :type :ok, :process 2, :f :txn, :value [[:r "in-0" ["a"]]]}',
        '{:index 6, :time 6, :type :invoke, :process 3, :f :txn, :value [[:r "in-1" ["b\\""]]]}',
        '{:index 7, :time 7, :type :ok, :process 3, :f :txn, :value [[:r "in-1" ["b\\""]]]}',
    ]


def test_the_history_of_a_seed_answers_each_operation_once() -> None:
    simulation = Simulation(1, ())
    assert not simulation.run().violations
    lines = list(elle_history(simulation.history, simulation.logs))
    assert any(":append" in line for line in lines) and any(":r " in line for line in lines)
    opened: set[str] = set()
    for line in lines:
        found = re.search(r":type :(\w+), :process (\d+),", line)
        assert found is not None
        kind, process = found.groups()
        assert (kind == "invoke") == (process not in opened)
        opened.add(process)
    assert len(lines) == 2 * len(opened)

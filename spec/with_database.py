"""A transaction of the broker and one of a database commit together: the database decides.

About: one program that sells once, the broker, the database with its table, processes that recover,
and one that cleans the table. Programs die; the database dies, or forgets a transaction whose
program it has lost. Everybody may be as slow as he likes.

Promised: rows without messages, or messages without rows, do not stay: whenever the broker's
transaction is decided, it is decided as the database has; and it is decided at last.

Assumed: the database keeps what it has committed, and lets one of two transactions insert a name:
the other waits for it. PREPARE and END are durable when they are answered. Left out: an
administrator who decides otherwise, a copy of the database with the same id, several databases.
"""

from typing import ClassVar, Final, NamedTuple

from spec.checker import Broken, Model, Off, Rules, Spec, StandsFor, Steps

OPEN: Final = "open"
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

# Where the program is.
START: Final = "start"
WORKS: Final = "works"  # both transactions are open, and have something
NAMED: Final = "named"  # its name is inserted
BOUND: Final = "bound"  # PREPARE is answered
STORED: Final = "stored"  # the database has answered COMMIT
ASKS: Final = "asks"  # the database has not
GIVES_UP: Final = "gives up"
OVER: Final = "over"  # or dead

SPLIT_ROWS: Final = "the database has committed, and the broker has aborted"
SPLIT_MESSAGES: Final = "the broker has committed, and the database has not"


class DatabaseRules(Rules):
    names_first: bool = True  # the name is inserted before PREPARE
    waits: bool = True  # recovery inserts the name itself: so it waits for who has inserted it
    keeps_prepared: bool = True  # no timeout ends a prepared transaction
    asks_after_failure: bool = True  # a COMMIT that failed may have happened
    deletes_late: bool = True  # the program deletes its row once the broker has answered
    reads_before_listing: bool = True  # the cleaner reads the rows, then what is prepared


class State(NamedTuple):
    deaths: int
    crashes: int  # of the database
    unheard: int  # COMMITs of the database whose answer is lost
    program: str = START
    txn: str = ""  # the broker's
    is_active: bool = False  # the database has an open transaction of the program
    has_name: bool = False  # which has inserted the name
    sold: bool = False  # its rows are committed
    row: str = ""  # the verdict beside the name, committed
    recoveries: tuple[str, str] = ("", "")  # "listed", or the verdict that they follow
    cleaner: str = ""  # "read", "listed", "deletes"


class Left(NamedTuple):
    deaths: int = 0
    crashes: int = 0
    unheard: int = 0


class WithDatabase(Model[State]):
    STANDS_FOR: ClassVar[StandsFor]
    FAULTS = frozenset({"die", "crash_database"})
    HAS_ENDS = True

    def __init__(self, left: Left, rules: DatabaseRules) -> None:
        self._left = left
        self._rules = rules

    def start(self) -> State:
        return State(*self._left)

    def wrong(self, s: State) -> Broken | None:
        if s.sold and s.txn == ABORTED:
            return Broken(SPLIT_ROWS)
        return Broken(SPLIT_MESSAGES) if s.txn == COMMITTED and not s.sold else None

    def is_over(self, s: State) -> bool:
        return s.txn in (COMMITTED, ABORTED) or (s.program == OVER and not s.txn)

    # The program

    def begin(self, s: State) -> Steps[State]:
        if s.program == START:
            yield "both begin", s._replace(program=WORKS, txn=OPEN, is_active=True)

    def insert_name(self, s: State) -> Steps[State]:
        if s.program != (WORKS if self._rules.names_first else BOUND) or s.has_name:
            return
        if s.row or not s.is_active:
            yield "the name cannot be inserted", s._replace(program=GIVES_UP)
        else:
            program = NAMED if self._rules.names_first else BOUND
            yield "its name is inserted", s._replace(program=program, has_name=True)

    def prepare(self, s: State) -> Steps[State]:
        if s.program != (NAMED if self._rules.names_first else WORKS):
            return
        if s.txn == OPEN:
            yield "the broker prepares", s._replace(program=BOUND, txn=PREPARED)
        else:
            yield "PREPARE is refused", s._replace(program=GIVES_UP)

    def commit_database(self, s: State) -> Steps[State]:
        if s.program != BOUND or not (s.has_name or not s.is_active):
            return
        if not s.is_active:
            failed = ASKS if self._rules.asks_after_failure else GIVES_UP
            yield "the database refuses COMMIT", s._replace(program=failed)
            return
        stored = s._replace(is_active=False, has_name=False, sold=True, row=COMMITTED)
        yield "the database commits", stored._replace(program=STORED)
        if s.unheard:
            unheard = ASKS if self._rules.asks_after_failure else GIVES_UP
            lost = stored._replace(program=unheard, unheard=s.unheard - 1)
            yield "the database commits, unheard", lost

    def find_out(self, s: State) -> Steps[State]:
        if s.program == ASKS:
            for line, after, verdict in self._decided(s):
                program = STORED if verdict == COMMITTED else GIVES_UP
                yield f"the program {line}", after._replace(program=program)

    def commit_at_broker(self, s: State) -> Steps[State]:
        if s.program == STORED and s.txn == PREPARED:
            yield "the broker commits", s._replace(txn=COMMITTED)

    def delete_row(self, s: State) -> Steps[State]:
        """In its next transaction."""
        if s.program == STORED and (s.txn == COMMITTED or not self._rules.deletes_late):
            yield "the program deletes its row", s._replace(program=OVER, row="")

    def give_up(self, s: State) -> Steps[State]:
        if s.program != GIVES_UP:
            return
        undone = s._replace(program=OVER, is_active=False, has_name=False)
        txn = ABORTED if s.txn in (OPEN, PREPARED) else s.txn
        yield "the program undoes both", undone._replace(txn=txn)

    # The database and the broker by themselves

    def forget_the_dead(self, s: State) -> Steps[State]:
        if s.program == OVER and s.is_active:
            yield "the database rolls back", s._replace(is_active=False, has_name=False)

    def time_out(self, s: State) -> Steps[State]:
        if s.txn == OPEN or (s.txn == PREPARED and not self._rules.keeps_prepared):
            yield "the transaction times out", s._replace(txn=ABORTED)

    # Recovery, of any process

    def list_prepared(self, s: State) -> Steps[State]:
        for i, at in enumerate(s.recoveries):
            if not at and s.txn == PREPARED:
                yield f"recovery {i} finds it prepared", _at(s, i, "listed")

    def decide(self, s: State) -> Steps[State]:
        for i, at in enumerate(s.recoveries):
            if at == "listed":
                for line, after, verdict in self._decided(s):
                    yield f"recovery {i} {line}", _at(after, i, verdict)

    def follow(self, s: State) -> Steps[State]:
        for i, at in enumerate(s.recoveries):
            if at in (COMMITTED, ABORTED):
                txn = at if s.txn == PREPARED else s.txn
                yield f"recovery {i} ends it at the broker", _at(s._replace(txn=txn), i, "")

    def _decided(self, s: State) -> "list[tuple[str, State, str]]":
        if s.row:
            return [(f"finds that it is {s.row}", s, s.row)]
        if not self._rules.waits:
            return [("finds no row", s, ABORTED)]
        if s.has_name:
            return []  # it waits
        return [("inserts that it is aborted", s._replace(row=ABORTED), ABORTED)]

    # The cleaner

    def clean(self, s: State) -> Steps[State]:
        first, then = ("read", "listed") if self._rules.reads_before_listing else ("listed", "read")
        may = {"read": bool(s.row), "listed": s.txn != PREPARED}
        if not s.cleaner and may[first]:
            yield f"the cleaner has {first}", s._replace(cleaner=first)
        elif s.cleaner == first and may[then]:
            yield f"the cleaner has {then}", s._replace(cleaner="deletes")
        elif s.cleaner == "deletes":
            yield "the cleaner deletes the row", s._replace(cleaner="", row="")

    # Faults

    def die(self, s: State) -> Steps[State]:
        if s.deaths and s.program not in (START, OVER):
            yield "the program dies", s._replace(deaths=s.deaths - 1, program=OVER)

    def crash_database(self, s: State) -> Steps[State]:
        if s.crashes and s.is_active:
            crashed = s._replace(crashes=s.crashes - 1, is_active=False, has_name=False)
            yield "the database crashes", crashed


def _at(s: State, i: int, at: str) -> State:
    recoveries = (at, s.recoveries[1]) if i == 0 else (s.recoveries[0], at)
    return s._replace(recoveries=recoveries)


_CLIENT: Final = "pybroker.client.database"
_COMMIT: Final = f"{_CLIENT}.commit.Commit"
_KEEPER: Final = f"{_CLIENT}.recovery.Keeper"
_TABLES: Final = f"{_CLIENT}.tables"
_COORDINATOR: Final = "pybroker.transaction.coordinator"

WithDatabase.STANDS_FOR = {
    "begin": (f"{_CLIENT}.transaction",),
    "insert_name": (f"{_COMMIT}._prepare", f"{_TABLES}.insert"),
    "prepare": (f"{_COMMIT}._prepare", f"{_COORDINATOR}.preparing.Preparing.prepare"),
    "commit_database": (f"{_COMMIT}._commit",),
    "find_out": (f"{_COMMIT}._find_out", f"{_TABLES}.decide"),
    "commit_at_broker": (f"{_COMMIT}._commit_at_broker",),
    "delete_row": (f"{_KEEPER}.take_finished", f"{_TABLES}.delete"),
    "give_up": (f"{_COMMIT}._give_up",),
    "forget_the_dead": (),
    "time_out": (f"{_COORDINATOR}.coordinator.TransactionCoordinator._expired",),
    "list_prepared": (f"{_KEEPER}.recover",),
    "decide": (f"{_KEEPER}._decide", f"{_TABLES}.decide"),
    "follow": (f"{_KEEPER}._follow",),
    "clean": (f"{_KEEPER}._clean", f"{_TABLES}.older_than"),
    "die": (),
    "crash_database": (),
}

SCENARIOS: Final = {
    "deaths": Left(deaths=1),
    "crashes": Left(crashes=1, unheard=1),
    "deaths and crashes": Left(deaths=1, crashes=1, unheard=1),
}


def _build(scenario: str, rules: Rules) -> WithDatabase:
    assert isinstance(rules, DatabaseRules)
    return WithDatabase(SCENARIOS[scenario], rules)


SPEC: Final = Spec(
    "with_database",
    DatabaseRules,
    _build,
    scenarios={"deaths": 100, "crashes": 100, "deaths and crashes": 200},
    switched_off={
        "names_first": Off("crashes", SPLIT_ROWS),
        "waits": Off("deaths", SPLIT_ROWS),
        "keeps_prepared": Off("deaths", SPLIT_ROWS),
        "asks_after_failure": Off("crashes", SPLIT_ROWS),
        "deletes_late": Off("deaths", SPLIT_ROWS),
        "reads_before_listing": Off("deaths", SPLIT_ROWS),
    },
)

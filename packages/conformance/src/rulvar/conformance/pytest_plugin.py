"""The pytest door: ``pytest --rulvar-store URL``, and a class for a store's own tests.

Every pytest run where the kit is installed imports this module: it imports nothing heavy
until a store is named or the class is used.

One test for each clause. A MUST that could not be verified is a failure here, never a skip;
clauses outside the claim are skipped in the class, and not collected for a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.conformance.certification.certificate import Result
    from rulvar.conformance.certification.runner import Certification
    from rulvar.conformance.contract.clauses import Clause
    from rulvar.conformance.harness.store_under_test import StoreUnderTest

__all__ = ["judge", "rulvar_certification"]

_RESULTS = pytest.StashKey[list["Result"]]()
_CERTIFICATION = pytest.StashKey["Certification"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the kit."""
    group = parser.getgroup("rulvar", "rulvar conformance kit")
    group.addoption(
        "--rulvar-store",
        metavar="URL",
        help="certify the registered store at URL; @tmp@ is a new folder",
    )
    group.addoption(
        "--rulvar-level",
        action="append",
        metavar="LEVEL",
        help="what is claimed (default: what the store declares); repeatable",
    )
    group.addoption("--rulvar-seed", type=int, metavar="N", help="make the random choices again")


def _url(config: pytest.Config) -> str | None:
    found: object = config.getoption("--rulvar-store", default=None)
    return found if isinstance(found, str) else None


# --- a URL, and no test file ------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect the clauses alone when a store is named and no file is."""
    config = session.config
    if _url(config) is None or config.args_source is pytest.Config.ArgsSource.ARGS:
        return None
    session.items = list(_items(session))
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the clauses to the files that were named."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if _url(config) is not None and named:
        items.extend(_items(session))


def _items(session: pytest.Session) -> Iterator[ClauseItem]:
    from rulvar.conformance.certification.runner import Certification  # noqa: PLC0415
    from rulvar.conformance.contract.registry import catalogue  # noqa: PLC0415 - see the docstring
    from rulvar.conformance.harness.store_under_test import StoreAtUrl  # noqa: PLC0415
    from rulvar.core.errors import RulvarError  # noqa: PLC0415

    config = session.config
    url = _url(config)
    if url is None:
        return
    try:
        run = Certification(
            StoreAtUrl(url),
            level=config.getoption("--rulvar-level"),
            seed=config.getoption("--rulvar-seed"),
        )
    except RulvarError as error:
        message = f"--rulvar-store {url}: {error}"
        raise pytest.UsageError(message) from error
    config.stash[_CERTIFICATION] = run
    config.stash[_RESULTS] = []
    config.add_cleanup(run.end)
    for clause in catalogue():
        if run.outside(clause) is None:
            yield ClauseItem.from_parent(session, name=clause.id, clause=clause, run=run)


class ClauseItem(pytest.Item):
    """One clause as a test."""

    def __init__(self, *, clause: Clause, run: Certification, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type] # pytest's own
        self._clause = clause
        self._run = run
        self._nodeid = f"rulvar.conformance::{clause.id}"

    def runtest(self) -> None:
        """Try the clause."""
        result = self._run.result(self._clause)
        self.config.stash[_RESULTS].append(result)
        judge(result)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Name the clause as its place."""
        return "rulvar.conformance", None, self._clause.id

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        """Show the store's timeline, not ours."""
        del style
        return str(excinfo.value)


def judge(result: Result) -> None:
    """End the running test as the result says: a MUST that is not verified fails."""
    if result.outcome in {"failed", "error"}:
        pytest.fail(result.story or result.reason, pytrace=False)
    if result.outcome == "not verified":
        if result.strength == "MUST":
            pytest.fail(f"not verified, so not conformant: {result.reason}", pytrace=False)
        pytest.skip(f"not verified: {result.reason}")
    if result.outcome == "not claimed":
        pytest.skip(f"not claimed: {result.reason}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show the verdict below the tests."""
    run = config.stash.get(_CERTIFICATION, None)
    if run is None:
        return
    from rulvar.conformance.certification.report import verdict  # noqa: PLC0415
    from rulvar.conformance.contract.registry import catalogue  # noqa: PLC0415

    results = config.stash[_RESULTS]
    claimed = sum(run.outside(clause) is None for clause in catalogue())
    certificate = run.certificate(results, complete=len(results) == claimed, duration_s=0.0)
    terminalreporter.section("rulvar conformance")
    for note in certificate.notes:
        terminalreporter.write_line(f"note: {note}")
    terminalreporter.write_line(
        f"{certificate.count('passed')} of {claimed} clauses passed, seed {run.seed}"
    )
    terminalreporter.write_line(verdict(certificate))


# --- a class of a store's own tests -------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each clause of whatever asks for ``rulvar_clause``."""
    if "rulvar_clause" not in metafunc.fixturenames:
        return
    from rulvar.conformance.contract.registry import catalogue  # noqa: PLC0415

    clauses = catalogue()
    metafunc.parametrize("rulvar_clause", clauses, ids=[clause.id for clause in clauses])


@pytest.fixture(scope="class")
def rulvar_certification(rulvar_subject: StoreUnderTest) -> Iterator[Certification]:
    """One certification for the class, over the fixture ``rulvar_subject`` of yours."""
    from rulvar.conformance.certification.runner import Certification  # noqa: PLC0415

    with Certification(rulvar_subject) as run:
        yield run

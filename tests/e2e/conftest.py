"""A sandbox for each test of a real program, and the table of tested combinations."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from clis import Cli, build_isolated_environment, install_drop_in
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from programs import install_program
from result_table import Table
from sandbox import Sandbox
from vendor_setups import VENDORS, Vendor

# The printed tables. They are global because pytest's report hooks get no configuration.
TABLES: dict[str, Table] = {}
SHARED = (
    "test_torture_clients.py",
    "test_export_browser.py",
    "test_exports.py",
    "test_page.py",
    "test_page_reconnect.py",
    "test_page_appearance.py",
    "test_page_vendors.py",
)


@pytest.fixture
def hello_file(tmp_path: Path) -> Path:
    """Create a small file in the working directory."""
    file = tmp_path / "work" / "hello.txt"
    file.parent.mkdir()
    file.write_text("hello world\nsecond line\n")
    return file


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    vendor: Vendor = request.param
    return vendor


@pytest.fixture
def model(vendor: Vendor) -> Iterator[ScriptedServer]:
    with vendor.server() as server:
        yield server


@pytest.fixture
def frontend(
    vendor: Vendor, model: ScriptedServer, hello_file: Path, tmp_path: Path
) -> Iterator[DropInFrontend]:
    """Install the drop-in for the vendor."""
    environment = build_isolated_environment(
        vendor, install_program(vendor.package), model.url, tmp_path
    )
    claude = install_drop_in(vendor, environment, tmp_path)
    frontend = DropInFrontend(
        claude, hello_file.parent, environment, extra_args=vendor.claude_flags
    )
    yield frontend
    frontend.close()


@pytest.fixture
def service(cli: Cli) -> Iterator[ScriptedServer]:
    """Start the model server of the tested claude."""
    with cli.vendor.server() as server:
        yield server


@pytest.fixture
def sandbox(
    cli: Cli, service: ScriptedServer, hello_file: Path, tmp_path: Path
) -> Iterator[Sandbox]:
    """Create a sandbox with the tested claude. All processes that it started must have exited at
    the end.
    """
    program = install_program(cli.vendor.package)
    environment = build_isolated_environment(cli.vendor, program, service.url, tmp_path)
    claude = program.executable if cli.bare else install_drop_in(cli.vendor, environment, tmp_path)
    sandbox = Sandbox(claude, hello_file.parent, environment)
    yield sandbox
    remaining = (
        sandbox.list_remaining_processes()
        if all(process.ended for process in sandbox.started)
        else {}
    )
    sandbox.close()
    assert remaining == {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(title): a row of the table of clients")
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker runs")
    TABLES["clients and vendors"] = Table(("client", "scenario"))
    TABLES["permissions"] = Table(("rules; call",))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    scenario = item.get_closest_marker("scenario")
    if scenario is not None:
        parameters = item.callspec.params
        rows = (str(parameters["client"]), scenario.args[0])
        report.cell = ("clients and vendors", rows, str(parameters["cli"]))  # type: ignore[attr-defined]
    if "row" in item.fixturenames:
        parameters = item.callspec.params
        report.cell = ("permissions", (f"`{parameters['row']}`",), parameters["vendor"].name)  # type: ignore[attr-defined]
    return report


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the report to the table. This runs in the process that prints the table, for tests of all
    workers.
    """
    cell: tuple[str, tuple[str, ...], str] | None = getattr(report, "cell", None)
    if cell is not None:
        table, row, column = cell
        TABLES[table].record_report(tuple(row), column, report)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share expensive fixtures in one worker (`--dist loadgroup`)."""
    for item in items:
        client = getattr(item, "callspec", None) and item.callspec.params.get("client")
        if item.path.name in SHARED:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {client or ''}"))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for title, table in TABLES.items():
        if table:
            terminalreporter.section(title)
            terminalreporter.write_line(table.format_markdown())

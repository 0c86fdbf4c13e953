"""Defines which client is tested with which claude: the cells of the table of real clients, and
which of them only `make full` tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from _pytest.mark.structures import ParameterSet
from acp_clients import ACPS, AcpClient
from clis import BARE, CLIS, Cli
from sdk_clients import BEFORE, CODE_SDK, PYTHON, PYTHON_OLDEST, TYPESCRIPT, SdkClient
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, PI, QWEN, Vendor

# Tests that do not depend on Node are not run with two versions of it.
NEW_NODE = (PYTHON, PYTHON_OLDEST, TYPESCRIPT)
REPRESENTATIVES = (PYTHON, ACPS[-1])  # each represents all clients of its kind
OTHERS = (*BEFORE, ACPS[0])  # each is the last version under its name
# One vendor for each driver. gemini uses the Agent Client Protocol.
DRIVER_VENDORS = (QWEN, PI, CODEX, GEMINI)
# The clients for tests of everything that two-way vendors support.
TALKERS = (PYTHON, TYPESCRIPT, ACPS[-1])

Test = Callable[..., None]
Client = SdkClient | AcpClient


def add_scenario(
    title: str,
    clients: Sequence[Client],
    *,
    asks: bool = False,
    basic: bool = False,
    brief: bool = False,
    older: Sequence[Client] = (),
    everywhere: bool = False,
    passed: bool = False,
    dialog: bool = False,
) -> Callable[[Test], Test]:
    """Add a row for each client. `asks`: a tool needs a permission. `basic`: every version is
    tested.

    `brief`: the row is also tested with the vendors that are tested with only one client of a kind.
    `dialog`: the row is part of the messages between a frontend and a vendor during a turn, and
    `make full` tests it with every vendor that supports it. `older`, `everywhere` and `passed` are
    for `make e2e` (`_is_full_only`).
    """

    def decorate_test(test: Test) -> Test:
        cells = []
        for client in clients:
            for cli in CLIS:
                usual = not (cli.brief or cli.is_dialog_only) or (
                    cli.brief and brief and client in (*REPRESENTATIVES, *OTHERS)
                )
                is_dialog_cell = dialog and client in TALKERS and cli.vendor.two_way
                if (cli.has_newer_version and not basic) or not (usual or is_dialog_cell):
                    continue
                later = not usual or _is_full_only(
                    client, cli, older, everywhere, passed=passed or everywhere
                )
                cells.append(_build_cell(client, cli, asks, later))
        return pytest.mark.scenario(title)(pytest.mark.parametrize(("client", "cli"), cells)(test))

    return decorate_test


def add_dialog(
    title: str,
    clients: Sequence[Client],
    *,
    able: Callable[[Vendor], bool] = lambda vendor: vendor.two_way,
    asks: bool = True,
    everywhere: bool = False,
    later: bool = False,
) -> Callable[[Test], Test]:
    """Add a row for each client, with the real claude and each vendor that is `able`, about two-way
    vendors.

    `make e2e` tests it with the Python client and qwen, with the Python client and one vendor per
    driver (`everywhere`), or not at all (`later`).
    """

    def decorate_test(test: Test) -> Test:
        cells = []
        for client in clients:
            for cli in (
                BARE,
                *(cli for cli in CLIS if not cli.has_newer_version and able(cli.vendor)),
            ):
                is_tested = cli.vendor is QWEN or (everywhere and cli.vendor in DRIVER_VENDORS)
                soon = client is PYTHON and is_tested and not later
                cells.append(_build_cell(client, cli, asks, not soon))
        return pytest.mark.scenario(title)(pytest.mark.parametrize(("client", "cli"), cells)(test))

    return decorate_test


def _build_cell(client: Client, cli: Cli, asks: bool, later: bool) -> ParameterSet:
    marks = [*_list_skip_marks(client, cli, asks), *[pytest.mark.full] * later]
    return pytest.param(client, cli, id=f"{client}-{cli}", marks=marks)


def _is_full_only(
    client: Client, cli: Cli, older: Sequence[Client], everywhere: bool, *, passed: bool
) -> bool:
    """Return whether only `make full` tests a cell. `make e2e` tests each difference once.

    The newest client of a kind represents its kind. For a client, vendors that are started for each
    turn, such as pi, do not differ: one scenario tests them `everywhere`. An older client, and
    TypeScript, is tested with pi, whose runs are the shortest; an older one only in scenarios that
    have it in `older`. The real claude alone shows that the tests are correct, and the drop-in
    passes its lines through. qwen takes twice the time of pi. Scenarios with `passed` test these,
    and the real claude alone with the Python client.
    """
    if client not in REPRESENTATIVES:
        return cli.vendor is not PI or (client is not TYPESCRIPT and client not in older)
    if cli.bare:
        return client is not PYTHON or not passed
    if cli.vendor in (CLAUDE_ITSELF, QWEN) and not passed:
        return True
    return (cli.brief or cli.has_newer_version) and not everywhere


def _list_skip_marks(client: Client, cli: Cli, asks: bool) -> Sequence[pytest.MarkDecorator]:
    """Return a mark with the reason if a permission cannot be requested."""
    if not asks:
        return ()
    if client in (PYTHON_OLDEST, CODE_SDK):
        return [pytest.mark.skip(reason="claude itself refuses the form of its answers")]
    if cli.vendor.silent:
        return [pytest.mark.skip(reason=f"{cli.vendor.name} asks nobody and runs its tools")]
    return []

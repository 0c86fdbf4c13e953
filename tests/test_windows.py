"""The parts of the Windows module that need no Windows; the rest was never run, and says so."""

import ctypes
from types import SimpleNamespace

import pytest

from shim.core.errors import FrontendError
from shim.core.vendor.vendor import Request
from shim.process import windows
from shim.process.windows import Job, check, is_batch, spellings
from shim.vendors import find


@pytest.mark.parametrize(
    ("name", "listed", "found"),
    [
        ("qwen", None, ["qwen.com", "qwen.exe", "qwen.bat", "qwen.cmd"]),
        ("qwen", ".CMD;.EXE", ["qwen.cmd", "qwen.exe"]),
        ("qwen", ".COM;.EXE;.BAT;.CMD;.VBS;.JS;.PY;;.EXE", ["qwen.com", "qwen.exe", "qwen.bat", "qwen.cmd"]),
        ("qwen.CMD", ".EXE", ["qwen.CMD"]),
        ("cursor-agent.exe", None, ["cursor-agent.exe"]),
        ("agent.2", ".EXE", ["agent.2.exe"]),
    ],
)
def test_a_program_is_looked_for_under_what_can_be_started(name, listed, found):
    assert spellings(name, {} if listed is None else {"PATHEXT": listed}) == found


@pytest.mark.parametrize(
    ("program", "batch"),
    [("C:\\npm\\qwen.cmd", True), ("x.BAT", True), ("x.cmd. ", True), ("x.exe", False), ("x.cmd.exe", False)],
)
def test_what_cmd_would_run_is_known_however_it_is_spelt(program, batch):
    assert is_batch(program) is batch


@pytest.mark.parametrize("word", ['"&calc&"', "%PATH%", "a^b", "a|b", "a\nb", "(x)", "!x!", "a>b"])
def test_an_argument_that_cmd_would_act_on_is_refused(word):
    with pytest.raises(FrontendError, match=r"run by cmd\.exe"):
        check(["qwen.cmd", "--flag", word])
    check(["qwen.exe", word])
    check(["qwen.cmd", "--model", "qwen3-coder:30b", "--dir=C:\\Users\\a b"])


@pytest.mark.parametrize("vendor", ["acai", "cake", "cursor"])
def test_a_prompt_is_no_argument_of_a_batch_file(vendor):
    from shim.core.claude.argv import parse

    request = Request(parse([]), "say hello & calc", inline=False)
    launch = find(vendor).launch(request)
    assert launch.stdin == b"say hello & calc"
    assert not any("calc" in word for word in launch.arguments)
    assert any("calc" in word for word in find(vendor).launch(request._replace(inline=True)).arguments)


class Kernel:
    """Records what a job asks of the system."""

    def __init__(self, refuses=()):
        self.calls = []
        self._refuses = refuses
        self.kernel32 = self.ntdll = self

    def last_error(self):
        return 5

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name == "SetInformationJobObject":
                limits = ctypes.cast(arguments[2], ctypes.POINTER(windows._Extended)).contents
                assert limits.BasicLimitInformation.LimitFlags == windows.KILL_ON_JOB_CLOSE
            if name in self._refuses:
                return 1 if name.startswith("Nt") else 0
            return 0 if name.startswith("Nt") else 2**40

        setattr(self, name, call)
        return call


def test_a_job_takes_a_child_in_before_it_runs_and_ends_with_its_handle():
    kernel = Kernel()
    job = Job(kernel)
    job.hold(SimpleNamespace(_handle=2**40 + 1))
    job.end()
    job.close()
    job.close()
    assert kernel.calls == [
        "CreateJobObjectW",
        "SetInformationJobObject",
        "AssignProcessToJobObject",
        "NtResumeProcess",
        "TerminateJobObject",
        "CloseHandle",
    ]


@pytest.mark.parametrize("name", ["CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject",
                                  "NtResumeProcess"])  # fmt: skip
def test_a_job_that_is_refused_is_said(name):
    with pytest.raises(OSError, match="refused"):
        Job(Kernel(refuses=(name,))).hold(SimpleNamespace(_handle=7))


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
def test_the_structures_have_the_sizes_that_windows_expects():
    assert (ctypes.sizeof(windows._Basic), ctypes.sizeof(windows._Extended)) == (64, 144)

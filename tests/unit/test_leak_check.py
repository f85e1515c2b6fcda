"""The `no_leaks` fixture itself: it must fail for each kind of thing it promises to notice."""

import pytest

pytest_plugins = ("pytester",)

LEAKS = {
    "socket": "import socket; s = socket.create_server(('127.0.0.1', 0)); kept.append(s)",
    "process": "import subprocess, sys; kept.append(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1))",
    "file": "kept.append(open('/dev/null'))",
    "segment": "import multiprocessing.shared_memory as m; kept.append(m.SharedMemory('shoal-leak', True, 8))",
}
CLEANUP = {"segment": "kept[0].close(); kept[0].unlink()", "process": "kept[0].kill(); kept[0].wait(5)"}


@pytest.mark.parametrize("kind", [*LEAKS, "nothing"])
def test_leak_is_noticed(kind: str, pytester: pytest.Pytester, pytestconfig: pytest.Config) -> None:
    source = (pytestconfig.rootpath / "tests" / "conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(source.replace("LEAK_DEADLINE_SECONDS = 5.0", "LEAK_DEADLINE_SECONDS = 0.3"))
    pytester.makepyfile(
        f"""
        kept = []

        def test_leaks(no_leaks):
            {LEAKS.get(kind, "pass")}

        def test_cleans_up():
            {CLEANUP.get(kind, "pass")}
        """
    )
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    result.assert_outcomes(passed=2, errors=0 if kind == "nothing" else 1)

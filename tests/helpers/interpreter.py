"""An interpreter for tests that has imported everything: each command that it is given runs in a fork of it.

In a chain of commands each would import torch, Lightning and transformers, which takes longer than what a tiny one
has to do. What libraries read of the environment as they are imported (``HF_ENDPOINT``) is what the server began with;
all else, arguments, folder, environment, streams, signals and the exit status, is each command's own.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

PARTS = ("cli.fit", "cli.report", "callbacks", "claims", "datamodules", "models")
PRELOADED = (*(f"lmdyn.{part}" for part in PARTS), "pandas")

# The executable: hands over what it was started with, passes signals on, and ends as the command ends.
_CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"streams"], [0, 1, 2])
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), __file__]).encode()
    server.sendall(struct.pack("q", len(said)) + said)
    answers = server.makefile("rb")
    command, = struct.unpack("q", answers.read(8))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(command, number))
    status, = struct.unpack("q", answers.read(8))
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Interpreter:
    """A server and its executable, which a test runs instead of ``sys.executable``; a context manager.

    Args:
        environment: of the server, by default that of the test.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._folder = Path(tempfile.mkdtemp(prefix="lmdyn-"))  # the path of a socket is short
        self.executable, self._address = self._folder / "python", self._folder / "s"
        self.executable.write_text(_CLIENT.format(python=sys.executable, address=str(self._address)))
        self.executable.chmod(self.executable.stat().st_mode | stat.S_IXUSR)

    def __enter__(self) -> "Interpreter":
        with (self._folder / "log").open("w") as log:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(self._address)],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._server.stdout
        assert self._server.stdout.read(1) == b"!", (self._folder / "log").read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.communicate()
        shutil.rmtree(self._folder)


def _serve(address: str) -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no command has to look through, and to copy, what was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who wait for the commands are reaped
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        os.write(1, b"!")
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _attend(client)
            client.close()


def _attend(client: socket.socket) -> None:
    """Start the command, wait for it and answer its status, negative where a signal has ended it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams = socket.recv_fds(client, 7, 3)[1]
    with client.makefile("rb") as reader:
        (length,) = struct.unpack("q", reader.read(8))
        arguments, folder, environment, executable = json.loads(reader.read(length))
    command = os.fork()
    if command == 0:
        client.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        if not _forks(arguments):
            os.execv(sys.executable, [sys.executable, *arguments])
        sys.executable = executable
        os._exit(_ended(arguments))
    for stream in streams:
        os.close(stream)
    with suppress(BrokenPipeError):  # the client was killed
        client.sendall(struct.pack("q", command))
        client.sendall(struct.pack("q", os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])))
    os._exit(0)


def _forks(arguments: list[str]) -> bool:
    """Whether what is asked for can be run here: a script, or -m and -c; pytest rewrites what it imports itself."""
    first, *others = arguments or ["-"]
    return not first.startswith("-") or (first == "-m" and others[:1] != ["pytest"]) or first == "-c"


def _ended(arguments: list[str]) -> int:
    """The exit status of what is run by these arguments of an interpreter."""
    status: Any = 0
    try:
        _run(arguments)
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)  # noqa: T201
    except BaseException:
        traceback.print_exc()
        status = 1
    for last in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with suppress(Exception):
            last()
    return status if isinstance(status, int) else int(status is not None)


def _run(arguments: list[str]) -> None:
    first, *others = arguments
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    if first == "-m":
        name, *others = others
        sys.argv, sys.path[:1] = [name, *others], [str(Path.cwd()), *paths]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *others = others
        sys.argv, sys.path[:1] = ["-c", *others], ["", *paths]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[:1] = arguments, [str(Path(first).resolve().parent), *paths]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    _serve(sys.argv[1])

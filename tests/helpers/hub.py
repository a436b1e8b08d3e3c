"""A stand-in for the Hugging Face hub: an HTTP server on this machine, for ``HF_ENDPOINT``.

It serves folders as repositories and answers what huggingface_hub, transformers and datasets ask: refs, revisions,
trees, paths-info, and files with ETag, commit and ranges. Latency and failures can be injected; requests are recorded.
"""

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote, urlsplit

Kind = Literal["models", "datasets"]


@dataclass
class _Failure:
    pattern: str
    times: int


@dataclass
class Hub:
    """A hub of folders.

    Attributes:
        root: where repositories lie.
        latency: seconds that each answer waits.
        asked: method and path of each request.
        url: the endpoint, while it is served.
        python: the interpreter that runs commands on it.

    Example:
        >>> hub = Hub(tmp_path)  # doctest: +SKIP
        >>> model.save_pretrained(hub.folder("models", "EleutherAI/pythia-70m", "step1000"))  # doctest: +SKIP
        >>> with hub.serve():  # doctest: +SKIP
        ...     subprocess.run([…], env=os.environ | hub.environment(tmp_path / "cache"))
    """

    root: Path
    latency: float = 0.0
    asked: list[str] = field(default_factory=list)
    url: str = ""
    python: Path = Path(sys.executable)
    _failures: list[_Failure] = field(default_factory=list)

    def folder(self, kind: Kind, name: str, revision: str = "main") -> Path:
        """The folder of a repository's revision, made where there is none."""
        folder = self.root / kind / name.replace("/", "--") / quote(revision, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def fail(self, pattern: str, times: int = 1) -> None:
        """Answer the next requests whose path has the pattern in it with an error."""
        self._failures.append(_Failure(pattern, times))

    @contextmanager
    def serve(self) -> Iterator["Hub"]:
        """Serve, until the block ends."""
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def environment(self, home: Path) -> dict[str, str]:
        """What a process needs to use this hub and nothing else: endpoint and an empty cache of its own."""
        switches = ("HUB_DISABLE_XET", "HUB_DISABLE_TELEMETRY", "HUB_DISABLE_PROGRESS_BARS")
        return {
            "HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1", **{f"HF_{switch}": "1" for switch in switches},
        }  # fmt: skip

    # What handlers ask ------------------------------------------------------------------------------------

    def fails(self, path: str) -> bool:
        """Whether to fail, once more."""
        for failure in self._failures:
            if failure.times > 0 and re.search(failure.pattern, path):
                failure.times -= 1
                return True
        return False

    def repository(self, kind: str, name: str) -> Path | None:
        """The folder of revisions; datasets without an owner are found by their name alone."""
        folder = self.root / kind / name.replace("/", "--")
        return folder if folder.is_dir() else None

    @staticmethod
    def commit(folder: Path) -> str:
        """40 hexadecimal digits, of what the revision holds."""
        files = sorted(
            str(p.relative_to(folder)) + str(p.stat().st_size) for p in folder.rglob("*") if p.is_file()
        )
        return hashlib.sha1(json.dumps([folder.name, files]).encode()).hexdigest()

    def revision(self, repository: Path, revision: str) -> Path | None:
        """The folder of a branch, a tag or a commit."""
        named = repository / quote(revision, safe="")
        if named.is_dir():
            return named
        return next((f for f in repository.iterdir() if self.commit(f) == revision), None)


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes = b"") -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        time.sleep(self.hub.latency)
        api = r"/api/(models|datasets)/(.+?)(?:/(refs|tree|revision|paths-info)(?:/(.+))?)?"
        if self.hub.fails(path):
            self._send(503, b"injected")
        elif match := re.fullmatch(api, path):
            self._api(*match.groups(), body)
        elif match := re.fullmatch(r"/(datasets/)?(.+?)/resolve/(.+)", path):
            self._file("datasets" if match[1] else "models", match[2], match[3])
        else:
            self._send(404, b"no such page")

    def _api(self, kind: str, name: str, what: str | None, rest: str | None, body: bytes) -> None:
        repository = self.hub.repository(kind, name)
        if repository is None:
            self._error(404, "RepoNotFound", f"no {kind} {name}")
            return
        if what == "refs":
            self._json(self._refs(repository))
            return
        folder = self.hub.revision(repository, "main" if what is None else rest or "main")
        inner = ""
        if folder is None and what == "tree" and rest:  # a folder within the revision
            for i, letter in enumerate(rest):
                if letter == "/" and (folder := self.hub.revision(repository, rest[:i])) is not None:
                    inner = rest[i + 1 :]
                    break
        if folder is None:
            self._error(404, "RevisionNotFound", f"no revision {rest} of {name}")
            return
        if what == "tree":
            if inner and not (folder / inner).is_dir():
                self._error(404, "EntryNotFound", f"no {inner}")
                return
            recursive = "recursive=true" in self.path.lower()
            entries = (folder / inner).rglob("*") if recursive else (folder / inner).iterdir()
            self._json([self._entry(folder, p) for p in sorted(entries)])
        elif what == "paths-info":
            paths = [str(p).strip("/") for p in json.loads(body)["paths"]] if body.startswith(b"{") else []
            self._json([self._entry(folder, folder / p) for p in paths if (folder / p).exists()])
        else:
            self._json(self._info(folder, name))

    def _refs(self, repository: Path) -> dict[str, Any]:
        kinds = ("branches", "converts", "tags", "pullRequests")
        found: dict[str, list[dict[str, str]]] = {kind: [] for kind in kinds}
        for folder in sorted(repository.iterdir()):
            name = unquote(folder.name)
            target = {"targetCommit": self.hub.commit(folder)}
            if name.startswith("refs/convert/"):
                short = name.removeprefix("refs/convert/")
                found["converts"].append({"name": short, "ref": name, **target})
            else:
                found["branches"].append({"name": name, "ref": f"refs/heads/{name}", **target})
        return found

    def _info(self, folder: Path, name: str) -> dict[str, Any]:
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        return {
            "_id": "0", "id": name, "modelId": name, "sha": self.hub.commit(folder), "private": False, "gated": False,
            "disabled": False, "tags": [], "downloads": 0, "likes": 0, "lastModified": "2024-01-01T00:00:00.000Z",
            "createdAt": "2024-01-01T00:00:00.000Z", "siblings": [{"rfilename": f} for f in files],
        }  # fmt: skip

    @staticmethod
    def _etag(file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def _entry(self, folder: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        size, etag = path.stat().st_size, self._etag(path)
        large = {"lfs": {"oid": etag, "size": size, "pointerSize": 130}} if path.suffix in _LARGE else {}
        return {"type": "file", "oid": etag[:40], "size": size, "path": name, **large}

    def _file(self, kind: str, name: str, rest: str) -> None:
        repository = self.hub.repository(kind, name)
        if repository is None:
            self._error(404, "RepoNotFound", f"no {kind} {name}")
            return
        # a revision may hold slashes, such as refs/convert/parquet: the longest that is there
        for i in range(len(rest) - 1, 0, -1):
            if rest[i] == "/" and (folder := self.hub.revision(repository, rest[:i])) is not None:
                break
        else:
            self._error(404, "RevisionNotFound", f"no revision in {rest}")
            return
        file = folder / rest[i + 1 :]
        commit = {"X-Repo-Commit": self.hub.commit(folder)}
        if not file.is_file():
            self._error(404, "EntryNotFound", f"no file {rest[i + 1 :]}", commit)
            return
        content, etag = file.read_bytes(), f'"{self._etag(file)}"'
        headers = {**commit, "ETag": etag, "Accept-Ranges": "bytes"}
        if file.suffix in _LARGE:
            headers |= {"X-Linked-ETag": etag, "X-Linked-Size": str(len(content))}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(asked[1]), int(asked[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{min(end, len(content) - 1)}/{len(content)}"
            self._send(206, content[begin : end + 1], headers)
            return
        self._send(200, content, headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


_LARGE = (".safetensors", ".bin", ".parquet", ".model")

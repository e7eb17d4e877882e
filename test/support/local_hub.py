"""A hub on this machine: the part of the Hugging Face hub's HTTP that its library downloads by."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


@dataclass
class LocalHub:
    """Repositories as commits (40 digits) and branches. ``asked``: methods and paths, in order."""

    url: str = ""
    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def push(self, repository: str, files: Files, branch: str = "main") -> str:
        """A commit of all these files at the end of a branch; its name."""
        text = json.dumps({name: data.hex() for name, data in files.items()})
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits.setdefault(repository, {})[commit] = files
        self.branches.setdefault(repository, {})[branch] = commit
        return commit

    def push_folder(self, repository: str, folder: Path) -> str:
        """A commit of a checkpoint's folder."""
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return self.push(repository, {str(p.relative_to(folder)): p.read_bytes() for p in paths})

    def environment(self, home: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables of a process that has this hub alone, and caches and state below ``home``."""
        kept = {k: v for k, v in base.items() if "proxy" not in k.lower()}
        for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN", "VLA_ROS_LOCK"):
            kept.pop(name, None)
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home / "hf"),
            "XDG_STATE_HOME": str(home / "state"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            try:
                data, headers = self._found([part for part in path.split("/") if part])
                status = 200
            except KeyError:
                data, headers, status = b"{}", {"X-Error-Code": "RepoNotFound"}, 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def _found(self, parts: list[str]) -> tuple[bytes, dict[str, str]]:
            if parts[:2] == ["api", "models"]:
                repository, rest = "/".join(parts[2:4]), parts[4:]
                commit = self._commit(repository, rest[1] if len(rest) > 1 else "main")
                files = hub.commits[repository][commit]
                if rest[:1] == ["tree"]:
                    rows: object = [_row(name, data) for name, data in files.items()]
                else:
                    names = [{"rfilename": name} for name in files]
                    rows = {"id": repository, "sha": commit, "siblings": names}
                return json.dumps(rows).encode(), {"Content-Type": "application/json"}
            repository = "/".join(parts[:2])
            commit = self._commit(repository, parts[3])
            data = hub.commits[repository][commit]["/".join(parts[4:])]
            return data, {"ETag": f'"{_oid(parts[-1], data)}"', "X-Repo-Commit": commit}

        def _commit(self, repository: str, revision: str) -> str:
            known = hub.commits[repository]
            return revision if revision in known else hub.branches[repository][revision]

    return Handler


def _row(name: str, data: bytes) -> dict[str, object]:
    row: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
    row["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if name.endswith(".safetensors"):
        row["lfs"] = {"oid": _oid(name, data), "size": len(data), "pointerSize": 130}
    return row


def _oid(name: str, data: bytes) -> str:
    if name.endswith(".safetensors"):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub without repositories, while the block runs."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

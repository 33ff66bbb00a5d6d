"""A small Hub on the loopback: what huggingface_hub asks for to create, fill and read repositories.

    with HubServer(users={"hf_ann": "ann"}) as hub:
        subprocess.run(..., env={**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_ann"})
        hub.requests("GET", "/model.safetensors")

Small files are in the commit and large ones go by Git LFS; files are read by `resolve`, with ETag, ranges and a
redirect to a second route, which stands for the content network and gets no token. Statuses and headers of errors are
those that the client tells errors apart by. The name of a data set here begins with `datasets/`, as in its address.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import yaml

_REPO = r"(?P<repo>(?:datasets/)?[^/]+/[^/]+)"
_API = rf"/api/(?:models/)?{_REPO}"


@dataclass
class Repository:
    """Commits are `{path: content}`; a branch is the name of its last commit."""

    owner: str
    private: bool = False
    gated: bool = False
    readers: set = field(default_factory=set)
    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    lfs: set = field(default_factory=set)  # paths

    def commit(self, files, branch="main"):
        """Name of a new commit with these files."""
        digest = hashlib.sha1(f"{branch} {len(self.commits)}".encode())
        for path in sorted(files):
            digest.update(path.encode() + files[path])
        self.commits[digest.hexdigest()], self.branches[branch] = files, digest.hexdigest()
        return digest.hexdigest()


class HubServer(ThreadingHTTPServer):
    """Serves on a free port of the loopback until the `with` block ends.

    Args:
        users: name of the user of each token.

    Attributes:
        repositories: by id.
        faults: what goes wrong next, by name -> how often; see `_Handler.fails`.
        log: [`Request`] of each, in order.
    """

    daemon_threads = True

    def __init__(self, users):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.users, self.repositories, self.objects = users, {}, {}
        self.faults, self.log, self.lock = {}, [], threading.Lock()
        # Two names of one place: the client follows a redirect to the Hub's own host in another way.
        self.url = f"http://localhost:{self.server_address[1]}"
        self.store = f"http://127.0.0.1:{self.server_address[1]}/store"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""

    def requests(self, method, path, since=None, until=None):
        """Logged requests of this method whose path holds `path`, between two marks (see the route `/mark`)."""
        names = [entry.path for entry in self.log]
        start = names.index(f"/mark/{since}") if since else 0
        stop = names.index(f"/mark/{until}") if until else len(names)
        return [entry for entry in self.log[start:stop] if entry.method == method and path in entry.path]


class Request(NamedTuple):
    method: str
    path: str
    status: int
    range: str | None
    has_token: bool


class Refusal(Exception):
    def __init__(self, status, code=None, message="", **headers):
        super().__init__(message)
        self.status, self.headers = status, headers
        if code:
            self.headers["X-Error-Code"] = code
        if message:
            self.headers["X-Error-Message"] = message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    ROUTES = [
        ("GET", r"/mark/\w+", "mark"),
        ("POST", r"/faults", "set_faults"),
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/validate-yaml", "validate_yaml"),
        ("POST", r"/api/repos/create", "create"),
        ("GET", _API, "info"),
        ("GET", _API + r"/revision/(?P<revision>[^/]+)", "info"),
        ("GET", _API + r"/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", "tree"),
        ("POST", _API + r"/preupload/(?P<revision>[^/]+)", "preupload"),
        ("POST", _API + r"/commit/(?P<revision>[^/]+)", "commit"),
        ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
        ("PUT", r"/store/(?P<oid>\w+)", "lfs_put"),
        ("POST", r"/verify/(?P<oid>\w+)", "lfs_verify"),
        ("GET", r"/store/(?P<oid>\w+)", "content"),
        ("GET", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    ]

    def do(self):
        place = urlsplit(self.path).path
        length = int(self.headers.get("Content-Length") or 0)
        self.body, self.status = self.rfile.read(length) if length else b"", 0
        method = "GET" if self.command == "HEAD" else self.command
        try:
            for known, pattern, name in self.ROUTES:
                match = known == method and re.fullmatch(pattern, place)
                if match:
                    getattr(self, name)(**{key: unquote(value) for key, value in match.groupdict("").items()})
                    break
            else:
                raise Refusal(404)
        except Refusal as refusal:
            self.answer({"error": str(refusal)}, refusal.status, **refusal.headers)
        finally:
            with self.server.lock:
                headers = self.headers.get("Range"), "Authorization" in self.headers
                self.server.log.append(Request(self.command, place, self.status, *headers))

    do_GET = do_HEAD = do_POST = do_PUT = do

    def log_message(self, *arguments):
        pass

    # Answers.

    def answer(self, content, status=200, cut=None, **headers):
        """JSON, or bytes as they are; of these only the first `cut`, and then the line is dead."""
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json"} | headers
        self.status = status
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def fails(self, fault):
        """Whether this is to go wrong, which is then done.

        `upload` and `commit` are answered by 503 and 500, `cut` ends a download after 1000 bytes, `stall` holds it
        after 20,000, which is more than a client's buffer takes, `corrupt` changes a byte of a large file and `short`
        leaves out its last ones.
        """
        with self.server.lock:
            left = self.server.faults.get(fault, 0)
            self.server.faults[fault] = max(0, left - 1)
            return left > 0

    def mark(self):
        self.answer({})

    def set_faults(self):
        self.server.faults |= json.loads(self.body)
        self.answer({})

    # Who asks, and for what.

    def user(self):
        given = self.headers.get("Authorization")
        if given is None:
            return None
        name = self.server.users.get(given.removeprefix("Bearer "))
        if name is None:
            raise Refusal(401, message="Invalid credentials in Authorization header")
        return name

    def repository(self, name, write=False, content=False):
        user, found = self.user(), self.server.repositories.get(name)
        if found is None or (found.private and user not in {found.owner, *found.readers}):
            raise Refusal(401 if user is None else 404, "RepoNotFound", "Repository not found")
        if write and user != found.owner:
            raise Refusal(403, message="Forbidden: you must be the owner")
        if content and found.gated and user not in {found.owner, *found.readers}:
            raise Refusal(401 if user is None else 403, "GatedRepo", f"Access to model {name} is restricted.")
        return found

    def files(self, repository, revision):
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repository.commits[sha]

    # The client's account and repositories.

    def whoami(self):
        user = self.user()
        if user is None:
            raise Refusal(401, message="Invalid username or password.")
        self.answer({"type": "user", "name": user, "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def validate_yaml(self):
        """The least that the Hub asks of a card: front matter, if any, that is a YAML mapping."""
        front = re.match(r"---\n(.*?)\n---\n", json.loads(self.body)["content"], re.S)
        try:
            is_mapping = front is None or isinstance(yaml.safe_load(front[1]), dict)
        except yaml.YAMLError:
            is_mapping = False
        if not is_mapping:
            raise Refusal(400, message="Invalid metadata in README.md.")
        self.answer({"errors": [], "warnings": []})

    def create(self):
        user, asked = self.user(), json.loads(self.body)
        if user is None:
            raise Refusal(401, message="Invalid username or password.")
        name = f"{asked.get('organization') or user}/{asked['name']}"
        kept = f"datasets/{name}" if asked.get("type") == "dataset" else name
        url = {"url": f"{self.server.url}/{kept}", "name": name, "id": name}
        if kept in self.server.repositories:
            return self.answer({"error": "You already created this repo"} | url, 409)
        if not name.startswith(f"{user}/"):
            raise Refusal(403, message=f"You don't have the rights to create a model under {name.partition('/')[0]}")
        made = Repository(user, private=asked.get("visibility") == "private")
        made.commit({".gitattributes": b""})
        self.server.repositories[kept] = made
        self.answer(url)

    def info(self, repo, revision="main"):
        found = self.repository(repo)
        sha, files = self.files(found, revision)
        siblings = [{"rfilename": path} for path in files]
        of = {"private": found.private, "gated": "manual" if found.gated else False, "siblings": siblings}
        name = repo.removeprefix("datasets/")
        self.answer({"id": name, "modelId": name, "sha": sha, "tags": [], "downloads": 0, "likes": 0} | of)

    def tree(self, repo, revision, folder):
        found = self.repository(repo, content=True)
        sha, files = self.files(found, revision)
        entries = []
        if folder and not any(path.startswith(f"{folder}/") for path in files):
            raise Refusal(404, "EntryNotFound", f"{folder} does not exist", X_Repo_Commit=sha)
        for path, content in files.items():
            if folder and not path.startswith(f"{folder}/"):
                continue
            entry = {"type": "file", "path": path, "size": len(content), "oid": _git_digest(content)}
            if path in found.lfs:
                entry["lfs"] = {"oid": _digest(content), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self.answer(entries)

    # Upload.

    def preupload(self, repo, revision):
        found = self.repository(repo, write=True)
        _, files = self.files(found, revision)
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            mode = "lfs" if b"\0" in base64.b64decode(file["sample"]) else "regular"
            oid = _git_digest(files[path]) if path in files and path not in found.lfs else None
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": answers})

    def lfs_batch(self, repo):
        self.repository(repo, write=True)
        answers = []
        for wanted in json.loads(self.body)["objects"]:
            answers.append({"oid": wanted["oid"], "size": wanted["size"]})
            if wanted["oid"] not in self.server.objects:
                url = self.server.url
                answers[-1]["actions"] = {
                    "upload": {"href": f"{self.server.store}/{wanted['oid']}?signature=1", "header": {}},
                    "verify": {"href": f"{url}/verify/{wanted['oid']}", "header": {}},
                }
        self.answer({"transfer": "basic", "objects": answers})

    def lfs_put(self, oid):
        if self.fails("upload"):
            raise Refusal(503)
        if _digest(self.body) != oid:
            raise Refusal(400, message="The content does not have this digest")
        self.server.objects[oid] = self.body
        self.answer(b"")

    def lfs_verify(self, oid):
        asked = json.loads(self.body)
        if asked != {"oid": oid, "size": len(self.server.objects.get(oid, b""))}:
            raise Refusal(404, message="Object does not exist")
        self.answer({})

    def commit(self, repo, revision):
        found = self.repository(repo, write=True)
        if self.fails("commit"):
            raise Refusal(500, message="Internal Error - We're working hard to fix this as soon as possible!")
        _, files = self.files(found, revision)
        files = dict(files)
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                found.lfs.discard(value["path"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.server.objects:
                    raise Refusal(400, message="An LFS object was not uploaded")
                files[value["path"]] = self.server.objects[value["oid"]]
                found.lfs.add(value["path"])
            elif line["key"] == "deletedFile":
                files.pop(value["path"], None)
        sha = found.commit(files, revision)
        self.answer({"success": True, "commitOid": sha, "commitUrl": f"{self.server.url}/{repo}/commit/{sha}"})

    # Download.

    def resolve(self, repo, revision, path):
        found = self.repository(repo, content=True)
        sha, files = self.files(found, revision)
        if path not in files:
            raise Refusal(404, "EntryNotFound", "Entry not found", X_Repo_Commit=sha)
        content = files[path]
        if path not in found.lfs:
            return self.send_part(content, ETag=f'"{_git_digest(content)}"', X_Repo_Commit=sha)
        oid = _digest(content)
        self.server.objects.setdefault(oid, content)
        linked = {"X_Linked_Size": len(content), "X_Linked_Etag": f'"{oid}"', "X_Repo_Commit": sha}
        self.answer(b"", 302, Location=f"{self.server.store}/{oid}?signature=1", **linked)

    def content(self, oid):
        content = self.server.objects.get(oid)
        if content is None:
            raise Refusal(404)
        if self.fails("corrupt"):
            content = bytes([content[0] ^ 255]) + content[1:]
        if self.fails("short"):
            content = content[:-100]
        cut = None
        if self.command == "GET":
            cut = 1000 if self.fails("cut") else 20_000 if self.server.faults.get("stall") else None
        self.send_part(content, cut=cut, ETag=f'"{oid}"')

    def send_part(self, content, cut=None, **headers):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        headers |= {"Accept_Ranges": "bytes", "Content_Type": "application/octet-stream"}
        status = 200
        if wanted:
            start, size, status = int(wanted[1]), len(content), 206
            content = content[start:]
            headers["Content_Range"] = f"bytes {start}-{size - 1}/{size}"
        self.answer(content, status, cut=cut, **headers)
        while cut is not None and self.server.faults.get("stall"):
            time.sleep(0.02)


def _digest(content):
    return hashlib.sha256(content).hexdigest()


def _git_digest(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


__all__ = ["HubServer", "Repository"]

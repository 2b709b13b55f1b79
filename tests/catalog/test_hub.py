"""A local HTTP server plays the hubs; the real clients ask it. No weights may ever be asked for."""

import hashlib
import json
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from loracle.catalog.models import find_model

pytest.importorskip("huggingface_hub")

SHAPE = dict(find_model("Qwen/Qwen3-0.6B", offline=True).config)
FILES = {
    "/lab/small/resolve/main/config.json": json.dumps(SHAPE).encode(),
    "/lab/small/resolve/main/tokenizer.json": b"{}",
    "/lab/small/resolve/main/tokenizer_config.json": b"{}",
    "/lab/small/resolve/v2/config.json": json.dumps({**SHAPE, "num_hidden_layers": 2}).encode(),
    "/lab/broken/resolve/main/config.json": b"{",
    "/lab/odd/resolve/main/config.json": b'{"model_type": "bert"}',
}
SCOPE = {("lab/scope", "config.json"): json.dumps(SHAPE).encode()}


class Hub(BaseHTTPRequestHandler):
    """Enough of both hubs: the file route of one, the file API of the other."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, *, body):
        Hub.asked.append(self.path)
        path = urllib.parse.urlparse(self.path)
        if path.path.startswith("/api/v1/models/"):
            return self._scope(path)
        if path.path in FILES:
            return self._send(200, FILES[path.path], body)
        if path.path.startswith("/lab/gated/"):
            return self._send(403, b"", body, {"X-Error-Code": "GatedRepo"})
        if path.path.startswith(("/lab/small/", "/lab/bare/")):
            return self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        if path.path.startswith("/lab/down/"):
            return self._send(500, b"", body)
        return self._send(404, b"", body, {"X-Error-Code": "RepoNotFound"})

    def _scope(self, path):
        name = path.path.removeprefix("/api/v1/models/").removesuffix("/repo")
        file = urllib.parse.parse_qs(path.query)["FilePath"][0]
        if name == "lab/private":
            return self._send(403, b"", True)
        content = SCOPE.get((name, file))
        return self._send(200, content, True) if content else self._send(404, b"", True)

    def _send(self, status, content, body, headers=None):
        self.send_response(status)
        revision = "2" if "/v2/" in self.path else "1"
        self.send_header("X-Repo-Commit", revision * 40)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """
import json, sys
from loracle.catalog.models import find_model, tokenizer_folder
from loracle.errors import LoracleError
answers = {}
for ref in sys.argv[1:]:
    try:
        if ref.startswith("tokenizer of "):
            folder = tokenizer_folder(ref.removeprefix("tokenizer of "))
            answers[ref] = sorted(path.name for path in folder.iterdir())
        else:
            shape = find_model(ref)
            answers[ref] = [shape.id, shape.num_params]
    except LoracleError as error:
        answers[ref] = [error.code, error.message]
print(json.dumps(answers))
"""


def ask(home, endpoint, *refs, **environment):
    done = subprocess.run(
        [sys.executable, "-c", ASK, *refs],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "",
            "HF_HOME": str(home / "hf"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "MODELSCOPE_DOMAIN": endpoint,
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


PARAMS = find_model("Qwen/Qwen3-0.6B", offline=True).num_params


def test_the_hub_is_asked_for_small_files_only(tmp_path, endpoint):
    Hub.asked.clear()
    answers = ask(
        tmp_path, endpoint, "lab/small", "lab/small@v2", "tokenizer of lab/small",
        "lab/nothing", "lab/gated", "lab/bare", "lab/broken", "lab/odd", "Qwen/Qwen3-8B",
    )  # fmt: skip
    assert answers["lab/small"] == ["lab/small", PARAMS]
    assert answers["lab/small@v2"][1] < PARAMS
    assert answers["tokenizer of lab/small"] == [
        "config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert answers["lab/nothing"] == ["E032", "error.hub.no_model"]
    assert answers["lab/gated"] == ["E036", "error.hub.gated"]
    assert answers["lab/bare"] == ["E032", "error.hub.no_file"]
    assert answers["lab/broken"] == ["E035", "error.catalog.file"]
    assert answers["lab/odd"][0] == "E033"
    assert not any("Qwen" in path for path in Hub.asked)  # the catalog knows it
    small = (".json", ".txt", ".model", ".jinja")
    files = [urllib.parse.urlparse(path).path for path in Hub.asked if "/resolve/" in path]
    assert files
    assert [path for path in files if not path.endswith(small)] == []


def test_a_cached_config_needs_no_network_and_a_missing_one_says_so(tmp_path, endpoint):
    ask(tmp_path, endpoint, "lab/small")
    Hub.asked.clear()
    offline = ask(tmp_path, endpoint, "lab/small", "lab/other", HF_HUB_OFFLINE="1")
    assert offline["lab/small"] == ["lab/small", PARAMS]
    assert offline["lab/other"] == ["E036", "error.hub.offline"]
    assert Hub.asked == []


def test_an_endpoint_that_does_not_answer_is_one_quick_error(tmp_path, endpoint):
    nowhere = "http://127.0.0.1:9"
    answers = ask(tmp_path, nowhere, "lab/small", "modelscope:lab/scope")
    assert answers["lab/small"] == ["E036", "error.hub.unreachable"]
    assert answers["modelscope:lab/scope"] == ["E036", "error.hub.unreachable"]
    assert ask(tmp_path, endpoint, "lab/down")["lab/down"][0] == "E036"


def test_modelscope_gives_a_config_and_keeps_it(tmp_path, endpoint):
    refs = ("modelscope:lab/scope", "modelscope:lab/none", "modelscope:lab/private")
    answers = ask(tmp_path, endpoint, *refs)
    assert answers[refs[0]] == ["lab/scope", PARAMS]
    assert answers[refs[1]] == ["E032", "error.hub.no_model"]
    assert answers[refs[2]] == ["E036", "error.hub.gated"]
    again = ask(tmp_path, "http://127.0.0.1:9", refs[0])
    assert again[refs[0]] == ["lab/scope", PARAMS]


def test_without_the_extra_it_is_one_line(tmp_path, endpoint):
    hidden = tmp_path / "hidden" / "huggingface_hub"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    answers = ask(tmp_path, endpoint, "lab/small", PYTHONPATH=str(hidden.parent))
    assert answers["lab/small"] == ["E032", "error.model.not_here"]


def test_a_cache_that_cannot_be_written_is_one_error(tmp_path, endpoint):
    (tmp_path / "cache").write_text("a file where a folder should be")
    answers = ask(tmp_path, endpoint, "modelscope:lab/scope")
    assert answers["modelscope:lab/scope"] == ["E035", "error.catalog.not_written"]

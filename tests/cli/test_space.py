"""Pushing a Space: the folder that is pushed, and what crosses the network to a hub of this machine."""

import base64
import json
import re
import threading
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi, constants

from specviz.cli import space
from specviz.cli.main import main
from specviz.errors import SpecvizError
from specviz.models.catalog import drafts_for
from specviz.ui import startup
from specviz.ui.choices import make_offer
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer
from tests.helpers.tiny_server import tiny_library

NAME = "owner/specviz"
PAIR = ["--target", "Qwen/Qwen3-8B", "--draft", "AngelSlim/Qwen3-8B_eagle3", "--hardware", "zero-a10g"]


class StubHub(BaseHTTPRequestHandler):
    """The hub's API as far as a push uses it. Binary files must be declared large, as the hub demands."""

    def log_message(self, *words):
        pass

    def answer(self, value, status=200):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def body(self):
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def do_GET(self):
        if self.headers.get("authorization") != "Bearer hf_stub":
            return self.answer({"error": "log in first"}, 401)
        files = [{"type": "file", "path": "old.txt", "size": 1, "oid": "0" * 40}]
        return self.answer(files if "/tree/" in self.path else {"sha": "0" * 40})

    def do_PUT(self):
        self.server.stored[self.path.rpartition("/")[2]] = self.body()
        self.answer({})

    def do_POST(self):
        body, server = self.body(), self.server
        if self.headers.get("authorization") != "Bearer hf_stub":
            return self.answer({"error": "log in first"}, 401)
        if self.path == "/api/repos/create":
            server.made = json.loads(body)
            return self.answer({"url": f"{server.address}/spaces/{NAME}", "id": "1"})
        if self.path.endswith("/preupload/main"):
            large = [line.split()[0] for line in server.attributes.splitlines()]
            names = [file["path"] for file in json.loads(body)["files"]]
            kinds = {name: any(fnmatch(name, each) for each in large) for name in names}
            return self.answer(
                {
                    "files": [
                        {"path": name, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
                        for name, is_large in kinds.items()
                    ]
                }
            )
        if self.path.endswith("/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{server.address}/put/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        if self.path.endswith("/commit/main"):
            server.commit = [json.loads(line) for line in body.splitlines()]
            return self.answer(
                {"commitUrl": f"{server.address}/spaces/{NAME}/commit/1", "commitOid": "1" * 40, "hookOutput": ""}
            )
        return self.answer({"success": True, "warnings": [], "errors": []})


@pytest.fixture
def hub(monkeypatch):
    """It takes large files as LFS does; Xet's own protocol is not played."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), StubHub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.stored, server.commit, server.made, server.attributes = {}, [], None, ""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("space") / "space"
    assert main(["space", "push", NAME, *PAIR, "--dry-run", str(place)]) == 0
    return place


@pytest.fixture(scope="module")
def static_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("static") / "space"
    assert main(["space", "push", NAME, "--static", "--dry-run", str(place)]) == 0
    return place


def test_the_folder_is_the_package_with_what_a_space_is_built_by(folder):
    front = folder.joinpath("README.md").read_text("utf-8").split("---\n")[1]
    given = {name: json.loads(value) for name, value in re.findall(r"^(\w+): (.*)$", front, re.MULTILINE)}
    assert (given["sdk"], given["app_file"], given["suggested_hardware"]) == ("gradio", "app.py", "zero-a10g")
    assert given["preload_from_hub"] == ["Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3"]
    needed = folder.joinpath("requirements.txt").read_text("utf-8").splitlines()
    assert [line for line in needed if line.startswith("torch")] == ["torch==2.11.0"]
    assert any(line.startswith("gradio>=") for line in needed)
    for name in ("specviz/cli/main.py", "specviz/zoo/configs/family.json", "assets/models/smol-eagle/config.json"):
        assert (folder / name).is_file()
    assert not [*folder.rglob("__pycache__"), *folder.rglob("screenshots")]


def test_the_owners_pair_is_set_where_nothing_else_is(folder, monkeypatch):
    monkeypatch.setenv("SPECVIZ_TARGET", "fable-target")
    monkeypatch.setenv("SPECVIZ_DRAFT", "")  # so that what is set below ends with this test
    monkeypatch.delenv("SPECVIZ_DRAFT")
    exec(compile(folder.joinpath("app.py").read_text("utf-8"), "app.py", "exec"), {"__name__": "app"})
    from specviz.settings import settings

    assert (settings().target, settings().draft) == ("fable-target", "AngelSlim/Qwen3-8B_eagle3")


def test_a_static_space_is_a_site_whose_first_page_generates(static_folder):
    front = static_folder.joinpath("README.md").read_text("utf-8").split("---\n")[1]
    given = {name: json.loads(value) for name, value in re.findall(r"^(\w+): (.*)$", front, re.MULTILINE)}
    assert (given["sdk"], given["app_file"]) == ("static", "index.html")
    assert '<a href="#live">Try it</a>' in static_folder.joinpath("index.html").read_text("utf-8")
    assert not [*static_folder.rglob("*.py")]
    large = [path.name for path in static_folder.rglob("*") if path.is_file() and path.stat().st_size > 10_000_000]
    assert large == ["sv-weights-fable-target.js"]  # the hub takes such a file as LFS alone


@pytest.mark.parametrize(("made", "sdk"), [("folder", "gradio"), ("static_folder", "static")])
def test_a_push_makes_the_space_and_puts_every_binary_file_where_the_hub_takes_it(made, sdk, hub, request):
    folder = request.getfixturevalue(made)
    hub.attributes = folder.joinpath(".gitattributes").read_text("utf-8")
    address = space.push(HfApi(endpoint=hub.address, token="hf_stub"), folder, NAME, sdk)
    assert address == f"{hub.address}/spaces/{NAME}"
    assert (hub.made["type"], hub.made["sdk"]) == ("space", sdk)
    lines = {
        name: [line["value"] for line in hub.commit if line["key"] == name]
        for name in ("file", "lfsFile", "deletedFile")
    }
    plain = {line["path"]: base64.b64decode(line["content"]) for line in lines["file"]}
    large = {line["path"]: line["oid"] for line in lines["lfsFile"]}
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert plain.keys() | large.keys() == files.keys()
    for name, content in plain.items():
        assert content == files[name].read_bytes()
        content.decode("utf-8")  # a file that is no text would be refused
    assert all(hub.stored[oid] == files[name].read_bytes() for name, oid in large.items())
    assert lines["deletedFile"] == [{"path": "old.txt"}]


def test_what_the_hub_refuses_is_said(hub, folder):
    with pytest.raises(SpecvizError, match=r"(?s)owner/specviz was not pushed: .*401.*hf auth login"):
        space.push(HfApi(endpoint=hub.address, token="hf_wrong"), folder, NAME, "gradio")
    assert hub.commit == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-owner"], "NAME must be owner/name"),
        ([NAME, "--target", "."], "must not be a folder here"),
        ([NAME, "--static", "--draft", "fable-draft"], "--static has no server: .*got --draft"),
    ],
)
def test_what_no_space_can_be_made_of_is_refused(arguments, words, tmp_path, capsys):
    assert main(["space", "push", *arguments, "--dry-run", str(tmp_path / "new")]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        ("smollm2", "smol-eagle", "eagle"),
        ("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", "eagle"),
        (None, None, "draft_model"),
    ],
)
def test_a_draft_head_is_drafted_with_by_the_method_it_is_made_for(target, draft, method):
    first = make_offer(target, draft).first
    assert first.method == method
    assert first.target == (target or "fable-target")
    assert draft is None or first.draft in drafts_for(target)


def test_a_model_that_the_owner_names_is_loaded_where_visitors_may_name_none(tmp_path):
    pool = tiny_library(tmp_path)
    pool.allow_any = False
    stranger = tiny_folder(tmp_path / "owned", tiny("llama", vocab_size=len(tiny_tokenizer())), tiny_tokenizer())
    assert startup._load(pool, str(stranger)) in pool.loaded_names()
    assert pool.allow_any is False
    assert startup._load(pool, "smol-eagle") == "smol-eagle"
    assert startup._load(pool, None) is None

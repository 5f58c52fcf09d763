"""Fingerprints: the same wherever a model lies, another one for any other model. And what the planner is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub import constants

from tests.models.common import TINY, local, make
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.precisions.fp16 import FP16
from zo_sweeps.engine.precisions.fp32 import FP32
from zo_sweeps.models import identity
from zo_sweeps.models.families import describe
from zo_sweeps.models.identity import DEMO, files_of, fingerprint_model, status
from zo_sweeps.models.load import load


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "copy")


def test_the_fingerprint_does_not_depend_on_the_path(copy, tmp_path, monkeypatch):
    expected = fingerprint_model(make(source="demo"))
    moved = copy.rename(tmp_path / "elsewhere")
    assert fingerprint_model(local(moved)) == expected
    monkeypatch.chdir(tmp_path)
    assert fingerprint_model(local("elsewhere")) == expected
    (tmp_path / "link").symlink_to(moved)
    assert fingerprint_model(local(tmp_path / "link")) == expected


def test_files_that_are_not_the_model_do_not_count(copy):
    (copy / "README.md").write_text("a model card")
    config = json.loads((copy / "config.json").read_text())
    config.update(_name_or_path="/home/me/model", transformers_version="9.9.9")
    (copy / "config.json").write_text(json.dumps(config, indent=8))
    assert fingerprint_model(local(copy)) == fingerprint_model(make(source="demo"))


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_one_changed_byte_changes_it(copy, file):
    before = fingerprint_model(local(copy))
    data = (copy / file).read_bytes()
    if file == "config.json":
        changed = data.replace(b"1e-06", b"2e-06")
    else:
        changed = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    assert sum(a != b for a, b in zip(data, changed, strict=True)) == 1
    (copy / file).write_bytes(changed)
    os.utime(copy / file, ns=(0, 0))
    assert fingerprint_model(local(copy)) != before


def test_another_chat_template_changes_it(copy):
    """In the settings or in a file of its own: trials of prompt=chat do not go on under the same id."""
    prints = [fingerprint_model(local(copy))]
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    for template in ("{{ messages }}", "{{ messages[0] }}"):
        (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
        prints.append(fingerprint_model(local(copy)))
        assert status(local(copy)).tokenizer.chat_template == template
    for template in ("{{ messages }}", "{{ messages[0] }}"):
        (copy / "chat_template.jinja").write_text(template)
        prints.append(fingerprint_model(local(copy)))
        assert status(local(copy)).tokenizer.chat_template == template
        assert str(copy / "chat_template.jinja") in files_of(local(copy))
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("settings", "changes"), [({"eos_token_id": [2, 77]}, True), ({"eos_token_id": 2}, False), ({"top_k": 5}, False)]
)
def test_ends_of_a_text_that_only_the_settings_for_generation_name_change_it(copy, settings, changes):
    (copy / "generation_config.json").write_text(json.dumps(settings))
    assert (fingerprint_model(local(copy)) != fingerprint_model(make(source="demo"))) == changes
    assert (str(copy / "generation_config.json") in files_of(local(copy))) == changes


@pytest.mark.parametrize("where", ["header", "first", "last"])
def test_large_files_are_sampled_from_the_first_byte_to_the_last(copy, where, monkeypatch):
    monkeypatch.setattr(identity, "WHOLE", 1)
    identity._identify_once.cache_clear()
    before = fingerprint_model(local(copy))
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    if where == "header":
        at = data.index(b'"format":"pt"') + len('"format":"p')
    else:
        at = start if where == "first" else len(data) - 1
    data[at] ^= 1
    file.write_bytes(data)
    assert fingerprint_model(local(copy)) != before
    identity._identify_once.cache_clear()


def test_a_change_of_any_tensor_of_a_large_file_is_seen(copy, monkeypatch):
    monkeypatch.setattr(identity, "WHOLE", 1)
    monkeypatch.setattr(identity, "BLOCKS", 2)
    monkeypatch.setattr(identity, "BLOCK", 64)
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    seen = {fingerprint_model(local(copy))}
    for entry in (entry for name, entry in header.items() if name != "__metadata__"):
        first, end = (start + offset for offset in entry["data_offsets"])
        file.write_bytes(whole[:first] + bytes(byte ^ 1 for byte in whole[first:end]) + whole[end:])
        identity._identify_once.cache_clear()
        seen.add(fingerprint_model(local(copy)))
    assert len(seen) == len(header), "one of each tensor, and the first in place of the metadata"
    identity._identify_once.cache_clear()


def test_random_weights_are_their_shape_and_seed():
    model = make("random_llama")
    same = replace(model, name="other", display="x", precision="bf16", arch=dict(reversed(model.arch.items())))
    assert fingerprint_model(same) == fingerprint_model(model)
    assert fingerprint_model(replace(model, seed=1)) != fingerprint_model(model)
    fewer = replace(model, arch={**model.arch, "num_hidden_layers": 2})
    assert fingerprint_model(fewer) != fingerprint_model(model)


def test_hub_models_are_their_id_and_revision():
    model = make("opt_1b3")
    assert fingerprint_model(model) == "hf:facebook/opt-1.3b@main"
    assert fingerprint_model(replace(model, revision="refs/pr/1")) == "hf:facebook/opt-1.3b@refs/pr/1"


def test_a_local_model_without_a_path_says_which_key_is_missing():
    with pytest.raises(UserError, match=r"the local model has no path in model\.path; add model\.path=FOLDER"):
        fingerprint_model(make("local"))


def test_an_unknown_source_is_an_error_with_the_choices():
    with pytest.raises(UserError, match=r"unknown source 'hug'.*demo, hub, local, random; did you mean 'hub'"):
        fingerprint_model(make(source="hug"))


def test_the_status_of_what_is_there(copy):
    for model in (make(source="demo"), local(copy), make("random_llama")):
        seen = status(model)
        assert seen.available, seen.why
        assert seen.fingerprint == fingerprint_model(model)
        assert seen.parameters == seen.arch.parameters
        assert FP16().weight_bytes(seen.arch) * 2 == FP32().weight_bytes(seen.arch) == 4 * seen.parameters


def test_a_second_look_at_a_model_does_not_read_it_again(copy):
    first = status(local(copy))
    weights = copy / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(b"\0" * before.st_size)  # a second reading would see this
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert status(local(copy)) == first


# --- the hub, spoken to over real HTTP on loopback -----------------------------------------------------------------


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    """A hub whose answers are `answers[path]` (404 otherwise), and an empty cache."""
    answers: dict[str, int] = {}
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(answers.get(self.path, 404))
            self.send_header("Location", "http://127.0.0.1:9/never-followed")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    identity.ask_hub_again()
    yield answers, asked
    server.shutdown()
    server.server_close()
    identity.ask_hub_again()


OPT = "/facebook/opt-1.3b/resolve/main"
WAYS_OUT = ("facebook/opt-1.3b", "hf download facebook/opt-1.3b", "model=opt_1b3 model.path=/", "model=random_llama")


def why_not(model):
    seen = status(model)
    assert not seen.available
    assert seen.parameters == 1_315_758_080  # from the YAML, so that memory can be estimated all the same
    assert all(part in seen.why for part in WAYS_OUT)
    assert "\n" not in seen.why
    return seen.why


def test_what_can_be_no_id_of_the_hub_is_one_line(fake_hub):
    seen = status(make("opt_1b3", path="a model/of mine"))
    assert not seen.available
    assert seen.why == (
        "'a model/of mine' is no id of a hub model in model.path; "
        "write ORGANISATION/NAME, or a folder that holds the model as /…, ~/… or ./…"
    )


def test_a_model_that_the_hub_offers_can_be_downloaded(fake_hub):
    answers, asked = fake_hub
    answers.update({f"{OPT}/config.json": 200, f"{OPT}/model.safetensors": 302})
    seen = status(make("opt_1b3"))
    assert seen.available
    assert seen.why == "facebook/opt-1.3b will be downloaded"
    assert (f"{OPT}/config.json", "Bearer hf_test") in asked
    count = len(asked)
    status(make("opt_1b3"))
    assert len(asked) == count, "asked once a process"


def test_a_gated_model_says_to_set_the_token(fake_hub):
    fake_hub[0][f"{OPT}/config.json"] = 401
    assert "set HF_TOKEN" in why_not(make("opt_1b3"))


def test_a_model_that_does_not_exist_says_so(fake_hub):
    assert "the hub has no such model or revision" in why_not(make("opt_1b3"))


def test_a_model_with_pickled_weights_alone_says_so(fake_hub):
    fake_hub[0].update({f"{OPT}/config.json": 200, f"{OPT}/pytorch_model.bin": 302})
    assert "no safetensors weights" in why_not(make("opt_1b3"))


def test_offline_asks_nobody(fake_hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in why_not(make("opt_1b3"))
    assert fake_hub[1] == []


def test_a_hub_that_does_not_answer_costs_one_time_out_for_all_models(fake_hub, monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(identity, "TIMEOUT", 0.3)
        for name in ("opt_1b3", "llama2_7b", "tinyllama_1b"):
            assert "cannot be reached" in status(make(name)).why
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()  # nobody called a second time


@pytest.mark.parametrize("sharded", [False, True])
def test_a_cached_model_is_found_and_loaded_without_a_network(fake_hub, checkpoint, sharded):
    folder = checkpoint(**({"max_shard_size": "200KB"} if sharded else {}))
    commit = "0" * 40
    repo = f"{constants.HF_HUB_CACHE}/models--facebook--opt-1.3b"
    os.makedirs(f"{repo}/refs")
    with open(f"{repo}/refs/main", "w") as file:
        file.write(commit)
    snapshot = shutil.copytree(folder, f"{repo}/snapshots/{commit}")
    seen = status(make("opt_1b3"))
    assert seen.available, seen.why
    assert seen.fingerprint == "hf:facebook/opt-1.3b@main"
    assert seen.parameters == describe(TINY["llama"]).parameters
    assert load(make("opt_1b3"), torch.float32, "cpu").commit == commit
    assert fake_hub[1] == []  # transformers, given an id, would ask the hub
    os.unlink(f"{snapshot}/model-00001-of-00003.safetensors" if sharded else f"{snapshot}/model.safetensors")
    assert not status(make("opt_1b3")).available
    if sharded:
        with open(f"{snapshot}/model.safetensors.index.json", "w") as file:
            file.write('{"weight_map": ["model.safetensors"]}')
        assert "is not an index of weight files" in status(make("opt_1b3")).why


def test_a_model_that_cannot_be_had_is_one_line_when_loaded_too(fake_hub):
    with pytest.raises(UserError, match=r"cannot load facebook/opt-1.3b: the hub has no such model or revision"):
        load(make("opt_1b3"), torch.float32, "cpu")


DOWNLOAD = """
import torch
from zo_sweeps.methods.parts import Model
from zo_sweeps.models.identity import status
from zo_sweeps.models.load import load

model = Model(source="hub", path="me/tiny", revision="main")
print(status(model).why)
print(load(model, torch.float32, "cpu").commit)
print(repr(status(model).why))
"""


@pytest.mark.multiprocess
def test_a_model_is_downloaded_without_pickled_weights_or_code(checkpoint, tmp_path):
    folder, commit, asked = checkpoint(), "a" * 40, []
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling_tiny.py").write_text("raise SystemExit")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body, **headers):
            self.send_response(200)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self):
            asked.append(self.path)
            if self.path.startswith("/api/models/me/tiny/revision/"):
                files = [{"rfilename": file.name} for file in folder.iterdir()]
                return self.answer(json.dumps({"id": "me/tiny", "sha": commit, "siblings": files}).encode())
            if self.path.startswith(f"/api/models/me/tiny/tree/{commit}"):
                sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
                tree = [{"type": "file", "path": name, "oid": name, "size": size} for name, size in sizes.items()]
                return self.answer(json.dumps(tree).encode())
            file = folder / self.path.rsplit("/", 1)[1]
            if not self.path.startswith("/me/tiny/resolve/") or not file.is_file():
                return self.send_error(404)
            return self.answer(file.read_bytes(), ETag=f'"{file.name}"', X_Repo_Commit=commit)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        env.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run([sys.executable, "-c", DOWNLOAD], env=env, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.stdout.splitlines() == ["me/tiny will be downloaded", commit, "''"], done.stderr
    fetched = {path.rsplit("/", 1)[1] for path in asked if "/resolve/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= fetched
    assert not fetched & {"pytorch_model.bin", "modeling_tiny.py"}

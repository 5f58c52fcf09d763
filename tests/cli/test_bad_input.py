"""Each way of getting it wrong: one clear line, status 2, nothing launched and no folder made."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.common import ENVIRONMENT, zo
from tests.plan.common import changed, write_grid
from zo_sweeps.cli.main import commands, main
from zo_sweeps.config import composer
from zo_sweeps.methods import registry

HERE = "<tmp>"  # stands for the test's folder
READING = ("status", "table", "figure", "report", "ui", "sync")  # commands that show what has been run
RAN = f"state_dir={HERE}/ran"  # a folder with a ledger
FIGURE = ["+grid=federated", "grid.only=[decomfl]", "grid.seeds=[0]", "task=trec"]
BAD = [
    # what the user types, and what the line must say
    (["+grid=llama2_superglu"], ["unknown grid 'llama2_superglu'", "did you mean 'llama2_superglue'?", "quickstart"]),
    (["grid=quickstart"], ["use +grid=quickstart"]),
    (["+grid=quickstart", "+grid=demo_sst2"], ["given twice"]),
    (["train.stepz=3"], ["unknown key 'train.stepz'", "did you mean 'train.steps'?"]),
    (["tran.steps=3"], ["unknown key 'tran'", "did you mean 'train'?"]),
    (["+foo=1"], ["unknown key 'foo'"]),
    (["+train.foo=1"], ["unknown key 'train.foo'"]),
    (["+executor.foo=1"], ["unknown key 'executor.foo'"]),
    (["~task"], ["task cannot be left out"]),
    (["task=demo_remark"], ["unknown task 'demo_remark'", "did you mean 'demo_remarks'?"]),
    (["task=demo_remarks,sst3"], ["unknown task 'sst3'"]),
    (["task=[sst2]"], ["write task=NAME"]),
    (["method=mezzo"], ["unknown method 'mezzo'", "did you mean 'mezo'?"]),
    (["model=3"], ["does not name a model"]),
    (["space.rnk=3"], ["unknown key 'space.rnk'", "did you mean 'space.rank'?"]),
    (["space.rank=abc"], ["space.rank='abc' has the wrong type"]),
    (["space.rank=1.5"], ["wrong type", "an integer"]),
    (["train.steps=abc"], ["train.steps='abc' has the wrong type"]),
    (["train.steps=1.5"], ["wrong type"]),
    (["update.lr="], ["wrong type", "a number"]),
    (["update.lr=nan"], ["not a finite number"]),
    (["grid.seeds=3"], ["grid.seeds has the wrong type", "list"]),
    (["grid.seeds=[a]"], ["wrong type"]),
    (["grid.exclude=[3]"], ["grid.exclude has the wrong type in the command line", "its entries must be mappings"]),
    (
        ["+grid.select.mod=max"],
        ["unknown key 'grid.select.mod' in the command line", "did you mean 'grid.select.mode'?"],
    ),
    (["+grid.tables.accuracy.foo=1"], ["unknown key 'grid.tables.accuracy.foo'"]),
    (["grid.tables.accuracy.layout=acc"], ["unknown table 'acc'", "accuracy"]),
    (["+grid=methods", "grid.tables.trained.published=prge/nope"], ["unknown published table 'prge/nope'"]),
    (["~grid.blocks.nope"], ["grid.blocks.nope is not there to leave out in the command line; grid.only=[?] lists"]),
    (["~grid.blocks.mezo.axes"], ["grid.blocks.mezo.axes cannot be left out in the command line; whole blocks"]),
    (["+grid.figures.loss.kind=curve"], ["grid.figures.loss.kind cannot be added in the command line; write it into"]),
    (["grid.relabel=maybe"], ["grid.relabel='maybe' has the wrong type in the command line; it must be true or false"]),
    (["fetch"], ["no model to fetch; fetch NAME"]),
    (["~grid.tables"], ["grid.tables cannot be left out", "grid.tables={} leaves out all"]),
    (["grid.select.metric=test/metric"], ["settings cannot be selected by 'test/metric'"]),
    (["grid.select.metric=dev/los"], ["unknown metric 'dev/los'", "did you mean 'dev/loss'?"]),
    (["grid.select.mode=maxi"], ["unknown mode 'maxi'"]),
    ([*FIGURE, "grid.figures.bytes.y=acc"], ["unknown y 'acc' in figure bytes of grid federated"]),
    ([*FIGURE, "grid.figures.bytes.kind=pie"], ["unknown kind of figure 'pie'"]),
    ([*FIGURE, "grid.figures.bytes.panels=update.r"], ["no trial has 'update.r' in figure bytes"]),
    (["update.lr=interval(1e-4,1e-2)"], ["'update.lr=interval(1e-4,1e-2)' lists no values; write update.lr=A,B"]),
    (["method=glob(*)"], ["'method=glob(*)' lists no values; write method=A,B"]),
    (["train.batch=2", "train.effective_batch=8"], ["train.effective_batch and train.batch are both set", "omit one"]),
    (["grid.exclude=[{update.lrr: 0.1}]"], ["unknown key 'update.lrr' in grid quickstart, exclude", "'update.lr'?"]),
    (["grid.exclude=[{seed: 1}]"], ["no seed is read from exclude", "write seeds: [...]"]),
    (["grid.title='{modle.display}'"], ["unknown part of a trial 'modle'", "did you mean 'model'?"]),
    (["+grid.blocks.mezo.per_task.demo_remark.train.steps=3"], ["unknown column 'demo_remark'", "'demo_remarks'?"]),
    (["+grid.blocks.mezo.per_task.demo_remarks=3"], ["has the wrong type", "it must be a mapping"]),
    (["space.rank=0"], ["space.rank of lora_fa must be at least 1, not 0"]),
    (["executor.cpus_per_trial=0"], ["executor.cpus_per_trial of ray must be at least 1, not 0 in the command line"]),
    (["executor=slurm"], ["unknown executor 'slurm'"]),
    (["executor=inline,ray"], ["several values for executor"]),
    (["plan", "executor=inline", "cluster.address=a:1"], ["executor=inline joins no cluster in cluster.address; omit"]),
    (["scale=tiny"], ["unknown scale 'tiny'"]),
    (["--multirun", "task=sst2,rte"], ["--multirun is not supported", "task=sst2,rte"]),
    (["-m"], ["--multirun is not supported"]),
    (["hydra.mode=MULTIRUN"], ["--multirun is not supported"]),
    (["model=local"], ["has no path", "model.path=FOLDER"]),
    (
        ["model.path=/m"],
        ["model.path says nothing of demo, whose source is demo, not hub or local", "model=local model.path=/m"],
    ),
    (["model.revision=v2"], ["model.revision says nothing of demo", "not hub in the command line"]),
    (
        ["model=opt_1b3", "model.arch.hidden_size=64"],
        ["says nothing of opt_1b3, whose source is hub, not local or random"],
    ),
    (["model=random_llama", "model.path=/m"], ["says nothing of random_llama, whose source is random"]),
    (["model=conf/m"], ["conf/m is no name of a model in the command line; write model=local model.path=conf/m"]),
    (["task=conf/task/x.yaml"], ["is no name of a task", "write task=x --config-dir FOLDER, where FOLDER/task/x.yaml"]),
    (["+grid=my/g.yaml"], ["my/g.yaml is no name of a grid", "write +grid=g --config-dir FOLDER"]),
    (["lr=1e-3"], ["unknown key 'lr' in the command line", "did you mean 'update.lr'?"]),
    (["train.q=2"], ["unknown key 'train.q'", "train.batch", "did you mean 'estimator.q'?"]),
    (["rates=[1]"], ["did you mean 'grid.rates'?"]),
    (["estimator.q=[1,2]"], ["it must be an integer; several make an axis: estimator.q=1,2"]),
    (["model=local", f"model.path={HERE}/empty"], ["not a model", "config.json"]),
    (["model=local", f"model.path={HERE}/nowhere"], ["no such folder", "nowhere"]),
    (["task=sst2_sent", f"data.dir={HERE}/empty"], ["no folder", "train.jsonl"]),
    (["task=sst2", f"data.dir={HERE}/data"], ["sentence", "train.jsonl:2"]),
    (["device=tpu"], ["unknown device 'tpu'"]),
    (["--rerun", "bogus"], ["unknown state or trial", "failed"]),
    (["--config-dir", f"{HERE}/nowhere"], ["no such folder"]),
    (["state_dir="], ["state_dir is empty", "state_dir=FOLDER"]),
    (["model=random_llama", "model.arch.hidden_size=7"], ["4 heads do not divide hidden_size=7", "a multiple of"]),
    (["model=random_llama", "model.arch.hidden_size=12"], ["heads of an even width, not 3"]),
    (["model=random_llama", "model.arch.num_key_value_heads=3"], ["3 key and value heads do not divide 4 heads"]),
    (["model=random_llama", "model.arch.vocab_size=100"], ["demo tokenizer", "4096 or more"]),
    (["model=random_roberta"], ["is a masked one", "without a mask", "use prompt=mezo_medium"]),
    (
        ["model=random_roberta", "prompt=mezo_medium", "method=prefix", "grid.relabel=true"],
        ["a prefix needs a causal model"],
    ),
    (
        ["model=random_roberta", "prompt=mezo_medium", "method=generate", "grid.relabel=true"],
        ["generation needs a causal model"],
    ),
    (["method=generate"], ["no row of grid quickstart agrees with method=generate", "add grid.relabel=true"]),
    (["model=random_roberta", "prompt=mezo_medium", "space.targets=[gate]"], ["unknown target 'gate'"]),
    (["prompt=chat"], ["prompt=chat needs a chat template", "tokenizer has none", "use an instruction-tuned model"]),
    (["prompt=chat", "model=random_roberta"], ["is a masked one", "prompt 'chat'", "use prompt=mezo_medium"]),
    (["prompt.system=Hello"], ["prompt.system is a turn of a chat: use prompt=chat, not mezo"]),
    (["--nope"], ["--nope", "--help"]),
    (["bogus"], ["unknown command 'bogus'", "doctor"]),
    (["+grid=quickstart", "bogus"], ["cannot read the override 'bogus'", "key=value"]),
    (["+grid=quickstart", "plan"], ["the command 'plan'", "python -m zo_sweeps plan +grid=quickstart"]),
    (["seed=x"], ["seed='x' has the wrong type", "it must be an integer"]),
    (["grid.seeds=[1.5]"], ["wrong type", "it must be an integer"]),
    (["train.eval_every=abc"], ["it must be an integer"]),
    (["grid.figures=x"], ["grid.figures has the wrong type in the command line; it must be a mapping"]),
    (["=3"], ["cannot read the override '=3'"]),
    (["tracking.uri=http://me:pw@host:5000"], ["tracking.uri names a user", "MLFLOW_TRACKING_PASSWORD"]),
    (["tracking.uri=[1]"], ["tracking.uri='[1]' is not the address of a server", "http://HOST:PORT"]),
    (["on.done=no-such-program x,y"], ["no such command: 'no-such-program' in on.done", "without a shell"]),
    (["on.finished=true"], ["on.finished"]),
    (["plan", "+grid=nope"], ["unknown grid 'nope'"]),
    (["table", "--format", "pdf", RAN], ["unknown format 'pdf'", "latex"]),
    (["table", "--table", "nope", RAN], ["unknown table 'nope'", "accuracy"]),
    (["table", RAN, "--output", f"{HERE}/data/sst2/train.jsonl/x"], ["cannot write", "train.jsonl"]),
    (["status", "feedbeef", RAN], ["unknown trial 'feedbeef'"]),
    (["status", "feedbeef", "cafe", RAN], ["2 trials to show; give one id"]),
    (["ui", "--port", "many"], ["--port", "many"]),
    *(([command], ["nothing has been run in", "zo_runs; name", "state_dir=FOLDER"]) for command in READING),
    (["export", "abc", "--out", "x"], ["nothing has been run in"]),
    (["plan", "state_dir=~no_such_user/x"], ["state_dir=~no_such_user/x is no folder"]),
    (["task=sst2", "data.dir=~no_such_user/x"], ["data.dir=~no_such_user/x is no folder"]),
    (["grid.title=a (b)"], ["cannot read", "quote text twice, once for the shell: 'grid.title="]),
    (["plan", f"state_dir={HERE}/file"], ["is no folder that can be read (Not a directory)"]),
    (["status", f"state_dir={HERE}/file/below"], ["is no folder that can be read (Not a directory)"]),
    (["export", "abc", "--out", "x", f"state_dir={HERE}/{'x' * 300}"], ["File name too long", "state_dir=FOLDER"]),
    *(([command, f"state_dir={'x' * 300}"], ["File name too long"]) for command in ("run", *READING)),
    (["bench", "nois"], ["unknown benchmark 'nois'", "did you mean 'noise'?"]),
    (["plan", "+grid=quickstart", "executor.fuse=auto"], ["executor.fuse"]),
    (["bench", "--rounds", "0"], ["--rounds must be at least 1, not 0"]),
    (["bench", "--rounds", "many"], ["--rounds", "many"]),
    (["bench", "noise", "a.json"], ["bench noise takes no files"]),
    (["bench", "compare", "a.json"], ["1 files to compare; bench compare A.json B.json"]),
    (["bench", "compare", "absent.json", f"{HERE}/file"], ["cannot read absent.json: No such file"]),
    (["bench", "compare", f"{HERE}/file", "b.json"], ["file is no file of the benchmark", "bench PART --json FILE"]),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with an empty one, a state folder, a file, and data whose second row lacks its sentence."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "ran").mkdir()
    (tmp_path / "ran" / "ledger.jsonl").touch()
    (tmp_path / "file").touch()
    folder = tmp_path / "data" / "sst2"
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = [{"sentence": "fine", "label": 1}, {"label": 0} if split == "train" else {"sentence": "x", "label": 0}]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(arguments)
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("zo_sweeps: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(("arguments", "parts"), BAD, ids=lambda value: " ".join(value))
def test_bad_input_gets_one_line_and_launches_nothing(
    arguments: list[str], parts: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.iterdir())
    line = refused(capsys, *(text.replace(HERE, str(place)) for text in arguments))
    for part in parts:
        assert part in line
    assert sorted(place.iterdir()) == before


def test_cuda_where_there_is_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this host has CUDA")
    for words in (["device=cuda"], ["device.kind=cuda"], ["device=cpu", "device.kind=cuda"]):
        assert "this host has no CUDA GPU" in refused(capsys, *words)
    assert not (place / "zo_runs").exists()


def test_a_state_folder_that_cannot_be_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unwritable = Path("/proc/state")  # nobody can, not even root
    status = main([f"state_dir={unwritable}"])
    err = capsys.readouterr().err
    assert status == 2
    assert f"cannot write to the state folder {unwritable}" in err
    assert err.count("\n") == 1


def test_a_port_that_is_used(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "state" / "mlflow").mkdir(parents=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = refused(capsys, "ui", f"state_dir={place / 'state'}", "--port", str(taken.getsockname()[1]))
    assert "cannot be used" in line


def test_a_state_folder_that_cannot_be_read(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "ran":
            raise PermissionError(errno.EACCES, "Permission denied")  # as for anybody but root
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for command in ("plan", "run", "table", "papers"):
        assert "is no folder that can be read (Permission denied)" in refused(capsys, command, f"state_dir={place}/ran")


@pytest.mark.multiprocess
def test_the_process_ends_with_the_same_line_and_status(place: Path) -> None:
    done = zo("+grid=quikstart", cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("zo_sweeps: unknown grid 'quikstart'")
    assert done.stderr.count("\n") == 1


# --- good input that launches nothing


@pytest.mark.multiprocess
def test_a_terminal_of_plain_ascii_and_no_docstrings(place: Path) -> None:
    command = [sys.executable, "-OO", "-m", "zo_sweeps"]
    settings = {**os.environ, **ENVIRONMENT, "PYTHONIOENCODING": "ascii"}

    def said(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], cwd=place, env=settings, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("ascii")

    assert "usage: " in said("plan", "--help")
    assert "ZO-LoRA-FA (q=4) ? Movie remarks ? lr 0.1 ? seed 1" in said("plan", "+grid=quickstart", "--trials")


@pytest.mark.parametrize("command", commands())
def test_every_command_has_a_help_page(command: str, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m zo_sweeps {command}")
    assert (commands()[command].__doc__ or "").splitlines()[0] in " ".join(text.split())


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_without_a_command_lists_the_commands(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    lines = capsys.readouterr().out.splitlines()
    begun = [line.split()[0] for line in lines if line[:2] == "  " and line[2:3].strip()]  # not how a text goes on
    assert [name for name in begun if name in commands()] == [*commands()]


@pytest.mark.multiprocess
def test_the_version_makes_no_folder(place: Path) -> None:
    before = sorted(place.iterdir())
    done = zo("--version", cwd=place)
    assert (done.returncode, done.stdout) == (0, "zo_sweeps 0.1.0\n")
    assert sorted(place.iterdir()) == before


def test_a_plan_makes_no_folder_and_lists_trials(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.iterdir())
    assert main(["plan", "+grid=quickstart", "--trials"]) == 0
    text = capsys.readouterr().out
    assert "25 trials (26 table entries), 25 can run here" in text
    assert "ZO-LoRA-FA (q=4) · Movie remarks · lr 0.1 · seed 1" in text
    assert sorted(place.iterdir()) == before


def test_a_plan_says_what_is_missing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+grid=llama2_superglue", "task=rte,squad"]) == 0
    text = capsys.readouterr().out
    assert "0 can run here" in text
    assert "time: no trial can run here, for the reasons above" in text
    assert "every trial that can run here has a result" not in text
    assert " 0 s" not in text
    assert "cannot run here" in text
    assert "meta-llama/Llama-2-7b-hf" in text


NAMES = ("rows", "é = a (b), [c] {d}: e", """it's "50" % @ \\ ;#?*""")


@pytest.mark.parametrize("name", NAMES)
def test_a_users_own_grid_task_and_data(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid and a task as YAML in a folder of the user's, and the rows as JSONL: nothing of the package is edited."""
    monkeypatch.setenv("HOME", str(place))
    conf = write_grid(place / f"my {name}", changed(axes={"task": ["praise"]}), "mine")
    (conf / "task").mkdir()
    (conf / "task" / "praise.yaml").write_text(
        "name: praise\ndisplay: Praise\nkind: classification\nmetric: accuracy\nlocal: praise\n"
        "fields: [text]\nlabel_field: label\ndialects:\n  mezo:\n    loss: candidates\n"
        '    template: "{{ text }} It was"\n    options: [" terrible", " great"]\n'
    )
    folder = place / name / "praise"
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = [{"text": f"{split} {i}", "label": i % 2} for i in range(4)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--config-dir", str(conf)]
    for folder in (place / name, Path("~") / name):
        status = main(["plan", "+grid=mine", f"data.dir={folder}", f"state_dir={folder}", *where])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        assert "2 trials (2 table entries), 2 can run here" in out
        assert "tasks: Praise" in out


def test_a_grid_file_that_is_not_yaml(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "conf" / "grid").mkdir(parents=True)
    (place / "conf" / "grid" / "broken.yaml").write_text("# @package grid\nname: [unclosed\n")
    assert "not valid YAML" in refused(capsys, "+grid=broken", "--config-dir", str(place / "conf"))


READS_OUTSIDE = {  # what a file of the user's holds besides what is right
    "grid/mine.yaml": "title: ${oc.env:SECRET}",
    "grid/nested.yaml": "title: ${oc.decode:${oc.env:SECRET}}",
    "grid/indirect.yaml": "paper: env\ntitle: ${oc.${grid.paper}:SECRET}",
    "grid/listed.yaml": "defaults: ['/task: ${oc.env:SECRET}', _self_]",
    "task/praise.yaml": "name: ${oc.env:SECRET}",
    "table/wide.yaml": "caption: ${oc.env:SECRET}",
}


@pytest.mark.parametrize("name", READS_OUTSIDE)
def test_a_file_that_reads_the_environment_is_refused(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value would be printed, and stored in MLflow."""
    monkeypatch.setenv("SECRET", "hunter2")
    group, option = name.removesuffix(".yaml").split("/")
    grid = changed(tables={"results": {"layout": "wide", "rows": {"zo": "ZO"}}}) if group == "table" else changed()
    conf = write_grid(place / "conf", grid, option if group == "grid" else "mine")
    (conf / group).mkdir(exist_ok=True)
    with (conf / name).open("a") as file:
        file.write(READS_OUTSIDE[name] + "\n")
    asked = {"grid": [f"+grid={option}"], "task": ["+grid=mine", f"task={option}"], "table": ["+grid=mine"]}
    line = refused(capsys, "plan", *asked[group], "--config-dir", str(conf))
    assert "${oc.env:SECRET} reads something outside of the configuration" in line
    assert "hunter2" not in line


@pytest.mark.multiprocess
def test_a_closed_pipe_is_not_an_error(place: Path) -> None:
    command = f"{sys.executable} -m zo_sweeps plan +grid=quickstart --trials | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


@pytest.fixture
def _no_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None of packages/ is installed."""
    monkeypatch.setattr(registry, "offered", lambda group: {})
    monkeypatch.setattr(registry, "_names", registry._names.__wrapped__)  # which keeps what it was told
    composer._registered = []  # what Hydra was told is another then, and after the test
    yield
    composer._registered = []


@pytest.mark.usefixtures("_no_packages")
def test_without_the_package_a_command_and_a_grid_say_what_to_install(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    for words in (["rtl", "--out", "x"], ["plan", "+grid=pezo_table6"], ["+grid=pezo_table6"]):
        assert main(words) == 2
        line = capsys.readouterr().err
        assert line.startswith("zo_sweeps: zo-sweeps-rtl is not installed, which brings the ")
        assert "; pip install 'zo-sweeps[rtl]'" in line
    bare = "+grid=quickstart", "grid.relabel=true"
    for words, what in {
        ("method=decomfl",): "the kind 'federated' in method/decomfl.yaml",
        ("method=fedavg_lora",): "the kind 'fedavg' in method/fedavg_lora.yaml",
        ("method=fedkseed",): "the perturbation 'seed_pool'",
        ("method=mezo", "perturbation=seed_pool_pro"): "the perturbation 'seed_pool_pro' in the command line",
    }.items():
        assert main(["plan", *bare, *words]) == 2
        assert f"zo-sweeps-federated is not installed, which brings {what}" in (line := capsys.readouterr().err)
        assert "; pip install 'zo-sweeps[federated]'" in line
    assert main(["papers", "pezo/table6"]) == 0
    assert "pip install 'zo-sweeps[rtl]'" in capsys.readouterr().out
    for words in (["plan", "+grid=league"], ["plan", "+grid.entrants.lozo_m={}"], ["plan", "update=muon"]):
        assert main(words) == 2
        line = capsys.readouterr().err
        assert line.startswith("zo_sweeps: zo-sweeps-league is not installed, which brings the "), line
        assert line.endswith("; pip install 'zo-sweeps[league]'\n"), line
    assert main(["export-program", "--out", "x"]) == 2
    assert "the command 'export-program'; pip install 'zo-sweeps[edge]'" in capsys.readouterr().err
    assert main(["bench", "programs"]) == 2
    assert "the command 'bench'; pip install 'zo-sweeps[bench]'" in capsys.readouterr().err
    assert main(["plan", "+grid=quickstart", "device=executorch"]) == 0
    assert "the runtime 'executorch'; pip install 'zo-sweeps[edge]'" in " ".join(capsys.readouterr().out.split())

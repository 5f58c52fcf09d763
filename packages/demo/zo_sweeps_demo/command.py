"""The command `demo`: the command line -> a page on loopback, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

import psutil

from zo_sweeps.cli.parser import grid_parser, parse
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import free_port
from zo_sweeps_demo.runs import GRID, Page, offered, pid_of, running, stop

HOST = "127.0.0.1"
FLAGS = {
    "server.address": HOST,
    "server.headless": "true",  # opens no browser, asks for no e-mail address
    "server.fileWatcherType": "none",
    "browser.serverAddress": HOST,
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
}


def demo(given: Sequence[str]) -> int:
    """Serve a page on loopback where one chooses, starts, watches, stops and exports a run, until Ctrl-C."""
    options = parsed(given)
    page = page_of(options)
    offered(page)  # refuses bad input before a server is started
    free_port(options.port, HOST)
    file = str(Path(__file__).with_name("page.py"))
    flags = [f"--{name}={value}" for name, value in {**FLAGS, "server.port": str(options.port)}.items()]
    command = [sys.executable, "-m", "streamlit", "run", file, *flags, "--", *given]
    print(f"http://{HOST}:{options.port}   (Ctrl-C to stop)", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # the former is ignored where a shell started this in the background
        signal.signal(number, signal.default_int_handler)
    # A session of its own: Ctrl-C reaches this process alone, which ends the other one.
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        status = server.wait()
        raise UserError(f"the page has ended (status {status})", fix="name a free port with --port")
    except KeyboardInterrupt:
        return 130
    finally:
        begun = _begun_by(server.pid)
        server.terminate()
        server.wait()
        held = {pid_of(folder): folder for folder in running(page)}
        for folder in held.values():
            with contextlib.suppress(ProcessLookupError):
                stop(folder)
                print(f"stopped: {folder}; the same choices go on from there")
        for run in begun:
            if run.pid not in held:
                with contextlib.suppress(psutil.NoSuchProcess):
                    run.terminate()


def _begun_by(server: int) -> list[psutil.Process]:
    """Return the runs that the page's process has started: one that holds no lock yet is not known by its folder."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(server).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie among them
                found += [child] if GRID in child.cmdline() else []
    return found


def parsed(given: Sequence[str]) -> Namespace:
    """Return the command's options. Raises UserError for bad input."""
    parser = grid_parser("demo", demo.__doc__)
    parser.add_argument("--port", type=int, default=8501, help="default: 8501")
    text = "folder of the runs, a folder each; default: zo_runs/demo"
    parser.add_argument(
        "--state-dir", type=expanduser, default=os.path.join("zo_runs", "demo"), metavar="DIR", help=text
    )
    return parse(parser, given)


def page_of(options: Namespace) -> Page:
    """Return what all runs of the page have in common. Raises UserError for what the page sets for each run."""
    page = Page(Path(options.state_dir), tuple(options.config_dir), tuple(options.overrides))
    for key, fix in {"state_dir": "write --state-dir DIR", "executor": "omit it"}.items():
        if key in page.given:
            raise UserError(f"the page sets {key} for each run", fix=fix)
    return page

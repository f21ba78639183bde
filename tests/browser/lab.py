"""A real Jupyter server, for JupyterLab and Notebook 7, that asks nobody for anything; and a notebook in it, driven by a browser."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request

App = Literal["lab", "notebook"]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90  # a kernel starts, on a machine that may be busy
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "docmanager-extension/plugin": {"autosave": False},
}
# Its sign in the toolbar shows earlier: a cell that is run then, is not run.
_KERNEL_IS_THERE = """async () => {
  const { sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
}"""
_OPTIONS = [
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--IdentityProvider.token=",
    "--ServerApp.disable_check_xsrf=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
]


class Server:
    """A Jupyter server on this machine."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def write(self, name: str, *cells: str) -> str:
        """Put a notebook into the server's folder; returns its name."""
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(made, self.folder / name)
        return name


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Run a server in a folder of its own, which holds its settings, workspaces and runtime files too."""
    for file, values in _SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{file}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    (folder / "notebooks").mkdir()
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", *_OPTIONS, f"--port={port}", f"--ServerApp.root_dir={folder / 'notebooks'}"]
    log = folder / "server.log"
    with log.open("wb") as told, subprocess.Popen(command, env=_environment(folder), stdout=told, stderr=told, cwd=folder) as process:
        try:
            wait_for_server(process, port, log)
            yield Server(f"http://127.0.0.1:{port}", folder / "notebooks")
        finally:
            process.terminate()  # it ends its kernels
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(folder: Path) -> dict[str, str]:
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    kernels = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return (
        os.environ
        | {name: str(folder / place) for name, place in own.items()}
        | {"PYTHONPATH": kernels, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_server(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"the server did not start:\n{log.read_text(encoding='utf-8')}")


class Notebook:
    """A notebook that is open in the browser; what goes wrong is kept in `trouble`."""

    def __init__(self, browser: Browser, server: Server, name: str, *, app: App = "lab") -> None:
        self.trouble: list[str] = []
        self.app = app
        self._server = server
        self._url = f"{server.url}/{'lab/tree' if app == 'lab' else 'notebooks'}/{name}"
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.page.on("request", self._asked)
        self.page.on("console", self._said)
        self.page.on("pageerror", self._failed)
        self.open()

    def open(self) -> None:
        """Load the page, for the first time or again."""
        self.page.goto(self._url + ("?reset" if self.app == "lab" else ""))
        self.cell(0).wait_for()
        self.page.evaluate(_KERNEL_IS_THERE)

    def cell(self, at: int) -> Locator:
        """A cell with code; -1 is the last."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(at)

    def view(self, at: int) -> Locator:
        """The explorer that a cell shows."""
        return self.cell(at).locator(".ortlens")

    def run(self, at: int) -> str:
        """Run a cell to its end; returns the text that it prints."""
        self.cell(at).locator(".cm-content").click()
        self.command("notebook:run-cell")
        return "\n".join(self.cell(at).locator(".jp-OutputArea-output pre").all_inner_texts()).strip()

    def python(self, code: str) -> str:
        """Run code in the last cell; returns the text that it prints."""
        self.cell(-1).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(code)
        return self.run(-1)

    def python_until(self, code: str, is_wanted: Callable[[str], bool]) -> str:
        """The same, again and again until the text is as wanted: what the page tells the kernel takes its time on a busy machine."""
        for _ in range(20):
            said = self.python(code)
            if is_wanted(said):
                break
            self.page.wait_for_timeout(500)
        return said

    def command(self, name: str, **arguments: str) -> None:
        """Run a command of the application to its end, as a menu would."""
        self.page.evaluate("([name, given]) => window.jupyterapp.commands.execute(name, given)", [name, arguments])

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self._server.url, "blob:", "data:")):
            self.trouble.append(f"request: {request.url}")

    # JupyterLab and Notebook 7 log of their own (commands that are registered twice, yjs). Ours come from a module in a blob, or by way
    # of the widgets' extensions. An output that is drawn once more after its cell ran again asks for the widget that the new one replaced;
    # the tests wait for the new one. On a busy machine, plugins of JupyterLab take long to activate, and it says so.
    def _said(self, message: ConsoleMessage) -> None:
        place = f"{message.location.get('url', '')} {message.text}"
        if "widget model not found" in message.text or " to activate" in message.text:
            return
        if message.type in ("error", "warning") and re.search(r"blob:|anywidget|jupyter-widgets|ortlens", place):
            self.trouble.append(f"console: {message.text} {place}")

    def _failed(self, error: Error) -> None:
        if re.search(r"blob:|anywidget|jupyter-widgets|ortlens", f"{error.stack} {error.message}"):
            self.trouble.append(f"error: {error.stack}")

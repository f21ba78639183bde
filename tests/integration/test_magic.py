"""The magics in a real IPython shell."""

import asyncio
import atexit
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from onnx import TensorProto, helper
from traitlets.config import Config

import ortlens
from ortlens.magic import unload
from ortlens.trace.recorder import CURRENT
from ortlens.views.widget import SelectionError
from tests.onnx_models import onnx_model

SET_UP = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
x = torch.randn(2, 4)
batch = {"input": x}
def f(a):
    return a * 2 + 1
fast = torch.compile(f, backend="ortlens")
"""


class Shell:
    """A shell, and what a cell put out."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.out = self.err = ""
        self.result: Any = None

    def run(self, cell: str) -> BaseException | None:
        """Run a cell as the user does; what it raised."""
        with capture_output() as caught:
            self.result = self.shell.run_cell(cell, store_history=True)
        self.out, self.err = caught.stdout, caught.stderr
        error: BaseException | None = self.result.error_before_exec or self.result.error_in_exec
        return error

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any value of the user's
        return self.shell.user_ns[name]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own in the place
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    made = Shell(InteractiveShell.instance(config=config))
    assert made.run("%load_ext ortlens") is None
    assert made.run(SET_UP) is None
    yield made
    unload(made.shell)
    InteractiveShell.clear_instance()
    atexit.unregister(made.shell.atexit_operations)  # each collects garbage, through all that a test run has left: seconds per shell


def test_a_call_is_compiled_shown_and_kept(shell: Shell, tmp_path: Path) -> None:
    line = "--calls 2 --no-grad --profile --verify --report 'a run.html' --save run.ortlens -o lens model(x)"
    assert shell.run(f"%ortlens {line}") is None
    lens = shell["lens"]
    assert shell.out.startswith("model(x): torch.compile with backend ortlens\n")
    torch.testing.assert_close(lens.result, shell["model"](shell["x"]))
    assert len(lens.sessions) == 1
    assert len(lens.kernels) > 0
    assert lens.numerics.ok.all()
    assert set(lens.graphs.phase) == {"inference"}
    assert (tmp_path / "a run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(ortlens.load(tmp_path / "run.ortlens").graphs) == 1
    assert torch.is_grad_enabled()
    assert CURRENT.get() is None


def test_what_was_not_recorded_is_suggested_as_it_can_be_typed(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 2 --no-grad model(x)") is None
    assert "%ortlens -o lens --verify model(x)" in shell.out
    assert "lens.verify(x)" not in shell.out
    assert shell.run("%ortlens --calls 2 --no-grad -o net model(x)") is None
    assert "net.verify(x)" in shell.out


def test_backend_and_options_reach_the_lens(shell: Shell) -> None:
    shell.run("%ortlens --dry-run --quiet -o lens f(x) + f(x)")
    assert (len(shell["lens"].partitions), len(shell["lens"].sessions)) == (1, 0)
    shell.run("%ortlens --calls 1 --quiet --backend eager -o lens f(x)")
    assert shell["lens"].captured().backend == "eager"
    shell.run("%ortlens --calls 1 --quiet --option min_partition_nodes=9 --option on-error=raise -o lens f(x)")
    assert set(shell["lens"].fallbacks.reason_code) == {"too_small"}


def test_any_expression_gives_its_value(shell: Shell) -> None:
    for expression, expected in (
        ("model(**batch)", "model(x)"),
        ("[f(each) for each in (x, x)][1]", "f(x)"),
        ("-- -f(x)", "-f(x)"),
        ("f(x) ;", "f(x)"),
        ("model.forward(x)", "model(x)"),
        ("(lambda a: a @ a.T)(x)", "x @ x.T"),
    ):
        assert shell.run(f"def within(x):\n    %ortlens --calls 1 --quiet -o lens {expression}\nwithin(x)") is None
        assert shell.out == ""
        torch.testing.assert_close(shell["lens"].result, eval(expected, shell.shell.user_ns))  # noqa: S307 - an expression of this test
        assert shell["lens"].sessions.calls.sum() >= 1


@pytest.mark.parametrize(
    ("cell", "line", "source"),
    [
        ("1\n%ortlens --quiet --calls 1 -o lens x * 3 + x", 2, "x * 3 + x"),
        ("%%ortlens -o lens --quiet\n\ndef g(a):\n    return a - 3\ntorch.compile(g, backend='ortlens')(x)", 4, "return a - 3"),
    ],
)
def test_nodes_lead_back_to_the_lines_of_the_user(shell: Shell, cell: str, line: int, source: str) -> None:
    shell.run(cell)
    nodes = shell["lens"].nodes
    assert set(zip(nodes.file, nodes.line, nodes.source, strict=True)) == {(f"In[{shell.shell.execution_count - 1}]", line, source)}


WRONG_LINES = {
    "%ortlens --nope f(x)": "there is no option --nope",
    "%ortlens --profil f(x)": "Did you mean --profile?",
    "%ortlens -q f(x)": "Put -- before an expression",
    "%ortlens f(x) -o lens": "%ortlens -o lens f(x)",
    "%ortlens y = f(x)": "lens.result",
    "%ortlens f(x": "was never closed",
    "%ortlens await f(x)": "cannot await",
    "%ortlens -o lens": "needs an expression",
    "%ortlens -o": "expected one argument",
    "%ortlens -o 1a f(x)": "'1a' is not a valid variable name",
    "%ortlens --calls none f(x)": "'none' is not a whole number from 1",
    "%ortlens --option nope=1 f(x)": "unknown option 'nope'",
    "%ortlens --option nope f(x)": "key=value",
    "%ortlens --dry-run --verify f(x)": "--verify needs a real run",
    "%ortlens --device cuda f(x)": "add --dry-run",
    "%ortlens --backend eager --profile f(x)": "--profile needs ONNX Runtime",
    "%ortlens --redact f(x)": "--report FILE",
    "%ortlens --save gone/run.ortlens f(x)": "there is no folder",
    "%%ortlens --nope\nlens = 1": "--nope is not an option",
    "%%ortlens --reprot x.html\nlens = 1": "Did you mean --report?",
    "%%ortlens --calls 3\nlens = 1": "--calls is an option of %ortlens only",
    "%%ortlens --verify\nlens = 1": "lens.verify(x)",
    "%%ortlens --profile\nlens = 1": "%ortlens --profile model(x)",
    "%%ortlens -o 'lens\nlens = 1": "No closing quotation",
    "%%ortlens model(x)\nlens = 1": "model(x) is not an option",
}


def test_a_wrong_line_is_one_message_and_runs_nothing(shell: Shell) -> None:
    for line, said in WRONG_LINES.items():
        assert type(shell.run(line)).__name__ == "UsageError", line
        assert shell.err.startswith("UsageError: ")
        assert said in shell.err
        assert "Traceback" not in shell.out + shell.err
        assert "lens" not in shell.shell.user_ns


def test_what_compiles_nothing_says_so(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 x") is None
    assert "nothing was compiled" in shell.err
    assert shell.run("%%ortlens -o lens\n1 + 1") is None
    assert 'torch.compile(model, backend="ortlens")' in shell.err
    assert len(shell["lens"].graphs) == 0


def test_a_cell_is_captured_and_runs_as_ever(shell: Shell) -> None:
    assert isinstance(shell.run("%%ortlens\n1 +"), SyntaxError)
    assert shell.run("%%ortlens -o lens  # kept\ny = fast(x)\ny.shape") is None
    assert shell.result.result == (2, 4)
    assert "Out[" in shell.out
    assert len(shell["lens"].sessions) == 1
    assert f"In[{shell.shell.execution_count - 1}]: torch.compile" in shell.out
    torch.testing.assert_close(shell["y"], shell["x"] * 2 + 1)
    shell.run("torch.compile(lambda a: a - 5, backend='ortlens')(x)")
    shell.run("%%ortlens -o other --quiet\ntorch.compile(lambda a: a / 7, backend='ortlens')(x)")
    assert set(shell["lens"].nodes.target) == {"aten.mul.Tensor", "aten.add.Tensor"}
    assert set(shell["other"].nodes.target) == {"aten.div.Tensor"}


@pytest.mark.parametrize(
    ("error", "shown"), [("1 / 0", "ZeroDivisionError: division by zero"), ("raise KeyboardInterrupt", "KeyboardInterrupt")]
)
def test_a_cell_that_raises_shows_keeps_and_writes_what_there_was(shell: Shell, tmp_path: Path, error: str, shown: str) -> None:
    raised = shell.run(f"%%ortlens -o lens --report run.html\nfast(x)\n{error}\nfast(x, x)")
    assert type(raised).__name__ in shown
    assert shown in shell.out
    assert shell.out.count("division by zero") == shown.count("division by zero")
    assert "magics.py" not in shell.out
    assert "torch.compile with backend ortlens" in shell.out
    assert len(shell["lens"].graphs) == 1
    assert (tmp_path / "run.html").is_file()
    assert CURRENT.get() is None


def test_cells_and_magics_may_nest(shell: Shell) -> None:
    for number, cell in enumerate(
        (
            "%%ortlens -o lens --quiet\n%%capture out\nfast(x)",
            "%%time\n%%ortlens -o lens --quiet\nfast(x)",
            "%%ortlens -o lens --quiet\nget_ipython().run_cell('1 + 1', silent=True)\nget_ipython().run_cell('2')\nfast(x)",
            "get_ipython().run_cell_magic('ortlens', '-o lens --quiet', 'y = fast(x)\\ny.shape')",
        )
    ):
        assert shell.run("torch.compiler.reset()") is None
        assert shell.run(cell) is None
        assert len(shell["lens"].sessions) == 1, number


def test_an_error_in_another_magic_leaves_nothing_open(shell: Shell) -> None:
    error = shell.run("get_ipython().run_cell_magic('ortlens', '-o late --quiet', 'fast(x)\\n1 / 0')")
    assert isinstance(error, ZeroDivisionError)
    assert shell.out.count("ZeroDivisionError: division by zero") == 1
    assert len(shell["late"].graphs) == 1
    assert type(shell.run("%%timeit -n2 -r2\n%%ortlens --quiet\nfast(x)")).__name__ == "UsageError"
    assert "use it once" in shell.err
    assert shell.run("%%ortlens -o other --quiet\nfast(x)") is None


def test_a_terminal_asks_for_lines_until_an_empty_one(shell: Shell) -> None:
    assert shell.shell.check_complete("%%ortlens -o lens\nfast(x)\n")[0] == "incomplete"
    assert shell.shell.check_complete("%%ortlens -o lens\nfast(x)\n\n")[0] == "complete"


def test_an_onnx_model_is_run_as_it_is(shell: Shell, tmp_path: Path) -> None:
    x, y = ([(name, TensorProto.FLOAT, ["rows", 4])] for name in "xy")
    onnx.save(onnx_model([helper.make_node("Neg", ["x"], ["y"], name="negated")], x, y), tmp_path / "net.onnx")
    assert shell.run("%ortlens --profile -o lens 'net.onnx'") is None
    assert list(shell["lens"].kernels.op_type) == ["Neg"]
    assert "ONNX model" in shell.out
    shell.run("%ortlens --verify 'net.onnx'")
    assert "lens.verify(module)" in shell.err
    shell.run("%ortlens 'gone.onnx'")
    assert "gone.onnx" in shell.err


def test_what_an_argument_computes_is_compiled_along_and_what_it_only_makes_is_not(shell: Shell) -> None:
    shell.run("made = []\ndef make():\n    made.append(1)\n    return torch.ones(2, 4)")
    shell.run("%ortlens --quiet --calls 3 -o lens f(make())")
    assert len(shell["made"]) == 1
    assert set(shell["lens"].nodes.target) == {"aten.mul.Tensor", "aten.add.Tensor"}
    shell.run("%ortlens --quiet --calls 3 -o lens f(torch.relu(x))")
    assert "aten.relu.default" in set(shell["lens"].nodes.target)


def test_an_error_of_the_model_is_shown_once_from_the_users_line_on(shell: Shell) -> None:
    shell.run("def g(a):\n    b = torch.relu(a)\n    torch._dynamo.graph_break()\n    raise KeyError('mine')")
    error = shell.run("%ortlens --calls 1 -o lens g(x)")
    assert isinstance(error, KeyError)
    assert shell.out.count("KeyError: 'mine'") == 1
    assert "raise KeyError('mine')" in shell.out
    assert "_run_line" not in shell.out
    assert len(shell["lens"].graphs) == 1
    assert "g(x): torch.compile with backend ortlens" in shell.out


def test_the_question_mark_documents_every_option(shell: Shell) -> None:
    for line in ("%ortlens", "%ortlens --help"):
        assert shell.run(line) is None
        assert ortlens.__version__ in shell.out
    from ortlens.magic.magics import OrtlensMagics, parser_of

    documented = OrtlensMagics.ortlens.__doc__ or ""
    for parser in map(parser_of, ("%ortlens", "%%ortlens")):
        for action in parser._actions:
            assert any(f"{name} " in documented or f"{name})" in documented for name in action.option_strings), action
    assert shell.run("%%ortlens?") is None


def test_a_cell_within_a_running_loop(shell: Shell) -> None:
    """As a kernel runs it: in a task of its own, whose context is gone when the cell is over."""

    async def kernel() -> object:
        cell = "%%ortlens -o lens --quiet\nimport asyncio\nawait asyncio.sleep(0)\nfast(x)"
        task = asyncio.ensure_future(shell.shell.run_cell_async(cell, transformed_cell=shell.shell.transform_cell(cell)))
        done = await task
        shell.shell.events.trigger("post_execute")
        return done.error_in_exec

    assert asyncio.run(kernel()) is None
    assert len(shell["lens"].sessions) == 1
    assert CURRENT.get() is None


def test_loading_again_and_unloading(shell: Shell) -> None:
    before = len(shell.shell.input_transformers_cleanup)
    assert shell.run("%reload_ext ortlens") is None
    assert len(shell.shell.input_transformers_cleanup) == before
    assert shell.run("%%ortlens -o lens --quiet\nfast(x)") is None
    assert len(shell["lens"].sessions) == 1
    assert shell.run("%unload_ext ortlens") is None
    assert len(shell.shell.input_transformers_cleanup) == before - 1
    assert shell.run("%ortlens") is not None


def test_a_display_that_fails_is_no_failing_model(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(shell.shell, "kernel", object(), raising=False)
    monkeypatch.setattr(ortlens.Lens, "show", broken)
    assert shell.run("%ortlens --calls 1 f(x)") is None
    assert "planted" in shell.err
    assert "torch.compile with backend ortlens" in shell.out


def test_loading_the_extension_does_not_wait_for_torch(run_python: Callable[..., str]) -> None:
    program = (
        "import os, sys; os.environ['IPYTHONDIR'] = os.getcwd();"
        "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell.instance();"
        "[shell.run_cell(cell) for cell in ('%load_ext ortlens', '%ortlens', '%ortlens --nope x')]; print('torch' in sys.modules)"
    )
    assert run_python(program).endswith("\nFalse\n")


def test_a_wrong_selection_of_the_explorer_is_one_short_error(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 -o lens model(x)") is None
    assert shell.run("from ortlens.views.widget import Explorer\nview = Explorer(lens.captured())") is None
    error = shell.run("view.selected = 'partition:nope'")
    assert isinstance(error, SelectionError)
    assert error._render_traceback_() == [shell.out.strip()]
    assert shell.out.startswith("SelectionError: 'partition:nope' names nothing in this capture")
    assert len(shell.out) < 300
    assert shell.run("view.close()") is None


@pytest.mark.parametrize("magic", ["%ortlens", "%%ortlens"])
def test_options_are_completed(magic: str, shell: Shell) -> None:
    def completed(line: str) -> list[str]:
        with provisionalcompleter():
            return [found.text for found in shell.shell.Completer.completions(line, len(line))]

    assert ("--profile" in completed(f"{magic} --pro")) == (magic == "%ortlens")
    assert completed(f"{magic} --repo") == ["--report"]


def test_a_module_is_no_call(shell: Shell) -> None:
    assert "%ortlens model(x)" in str(shell.run("%ortlens model"))

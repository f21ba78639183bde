"""The magics in a real IPython shell."""

from __future__ import annotations

import asyncio
import atexit
import sys
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from onnx import TensorProto, helper
from traitlets.config import Config

import ortlens
from ortlens.magic import unload
from ortlens.magic.cells import CellTransform
from ortlens.trace.recorder import CURRENT
from ortlens.views.widget import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


def test_a_call_is_compiled_shown_and_kept(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 2 -o lens model(x)") is None
    lens = shell["lens"]
    assert shell.out.startswith("model(x): torch.compile with backend ortlens\n")
    assert "everything" in shell.out
    torch.testing.assert_close(lens.result, shell["model"](shell["x"]))
    assert len(lens.sessions) == 1
    assert CURRENT.get() is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("model(**batch)", "model(x)"),
        ("f(x) + f(x)", "f(x) + f(x)"),
        ("torch.relu(model(x))", "torch.relu(model(x))"),
        ("[f(each) for each in (x, x)][1]", "f(x)"),
        ("-f(x)", "-f(x)"),
        ("-- -f(x)", "-f(x)"),
        ("f(x) ;", "f(x)"),
        ("model.forward(x)", "model(x)"),
        ("(lambda a: a @ a.T)(x)", "x @ x.T"),
    ],
)
def test_any_expression_gives_its_value(shell: Shell, expression: str, expected: str) -> None:
    assert shell.run(f"%ortlens --calls 1 --quiet -o lens {expression}") is None
    assert shell.out == ""
    torch.testing.assert_close(shell["lens"].result, eval(expected, shell.shell.user_ns))  # noqa: S307 - an expression of this test
    assert shell["lens"].sessions.calls.sum() >= 1


def test_an_onnx_model_is_run_as_it_is(shell: Shell, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="negated")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "net.onnx")
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


def test_the_lines_of_an_expression_lead_back_to_the_cell(shell: Shell) -> None:
    shell.run("1\n%ortlens --quiet --calls 1 -o lens x * 3 + x")
    number = shell.shell.execution_count - 1
    (place,) = set(zip(shell["lens"].nodes.file, shell["lens"].nodes.line, shell["lens"].nodes.source, strict=True))
    assert place == (f"In[{number}]", 2, "x * 3 + x")


def test_an_expression_without_a_computation_says_so(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 x") is None
    assert "nothing was compiled" in shell.err


def test_names_of_a_function_are_seen(shell: Shell) -> None:
    assert shell.run("def h(own):\n    %ortlens --quiet --calls 1 -o lens f(own)\nh(torch.ones(3))") is None
    torch.testing.assert_close(shell["lens"].result, torch.full((3,), 3.0))


def test_profile_and_verify_look_closer(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 --no-grad --profile --verify -o lens model(x)") is None
    assert len(shell["lens"].kernels) > 0
    assert shell["lens"].numerics.ok.all()
    assert set(shell["lens"].graphs.phase) == {"inference"}
    assert torch.is_grad_enabled()


def test_a_dry_run_runs_nothing(shell: Shell) -> None:
    assert shell.run("%ortlens --dry-run --quiet -o lens f(x) + f(x)") is None
    assert (len(shell["lens"].partitions), len(shell["lens"].sessions)) == (1, 0)


def test_another_backend_and_options_reach_the_lens(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 --quiet --backend eager -o lens f(x)") is None
    assert shell["lens"].captured().backend == "eager"
    assert shell.run("%ortlens --calls 1 --quiet --option min_partition_nodes=9 --option on-error=raise -o lens f(x)") is None
    assert set(shell["lens"].fallbacks.reason_code) == {"too_small"}


def test_files_are_written(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("%ortlens --calls 1 --quiet --report 'a run.html' --save run.ortlens f(x)") is None
    assert (tmp_path / "a run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(ortlens.load(tmp_path / "run.ortlens").graphs) == 1
    assert "a run.html" in shell.out
    assert "run.ortlens" in shell.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nope f(x)", "there is no option --nope"),
        ("--profil f(x)", "there is no option --profil; did you mean --profile? %ortlens? shows"),
        ("-q f(x)", "put -- before an expression"),
        ("f(x) -o lens", "options go before the expression: %ortlens -o lens f(x)"),
        ("y = f(x)", "%ortlens -o lens f(x); its value is then in lens.result"),
        ("f(x", "was never closed"),
        ("await f(x)", "cannot await"),
        ("-o lens", "needs an expression"),
        ("-o", "expected one argument"),
        ("-o 1a f(x)", "'1a' is not a valid variable name"),
        ("--calls none f(x)", "'none' is not a whole number from 1"),
        ("--option nope=1 f(x)", "unknown option 'nope'"),
        ("--option nope f(x)", "key=value"),
        ("--dry-run --verify f(x)", "--verify needs a real run"),
        ("--backend eager --profile f(x)", "--profile needs ONNX Runtime"),
        ("--redact f(x)", "--report FILE"),
        ("--report gone/run.html f(x)", "there is no folder"),
        ("--save gone/run.ortlens f(x)", "there is no folder"),
    ],
)
def test_a_wrong_line_is_one_message_without_a_traceback(shell: Shell, line: str, said: str) -> None:
    error = shell.run(f"%ortlens {line}")
    assert type(error).__name__ == "UsageError"
    assert said in shell.err
    assert shell.err.startswith("UsageError: ")
    assert "Traceback" not in shell.out + shell.err
    assert "lens" not in shell.shell.user_ns


def test_an_error_of_the_model_is_shown_once_from_the_users_line_on(shell: Shell) -> None:
    shell.run("def g(a):\n    b = torch.relu(a)\n    torch._dynamo.graph_break()\n    raise KeyError('mine')")
    error = shell.run("%ortlens --calls 1 -o lens g(x)")
    assert isinstance(error, KeyError)
    assert shell.out.count("KeyError: 'mine'") == 1
    assert "raise KeyError('mine')" in shell.out
    assert "_run_line" not in shell.out
    assert len(shell["lens"].graphs) == 1
    assert "g(x): torch.compile with backend ortlens" in shell.out


def test_an_unknown_name_is_shown_as_ever(shell: Shell) -> None:
    assert isinstance(shell.run("%ortlens nope(x)"), NameError)
    assert "call_from_expression" not in shell.out


@pytest.mark.parametrize("line", ["%ortlens", "%ortlens --help"])
def test_alone_it_says_what_there_is(shell: Shell, line: str) -> None:
    assert shell.run(line) is None
    assert ortlens.__version__ in shell.out
    assert "%ortlens?" in shell.out


def test_the_question_mark_documents_every_option(shell: Shell) -> None:
    from ortlens.magic.magics import OrtlensMagics
    from ortlens.magic.options import cell_parser, line_parser

    documented = OrtlensMagics.ortlens.__doc__ or ""
    for parser in (line_parser(), cell_parser()):
        for action in parser._actions:
            assert any(f"{name} " in documented or f"{name})" in documented for name in action.option_strings), action
    assert shell.run("%%ortlens?") is None


def test_a_cell_is_captured_and_runs_as_ever(shell: Shell) -> None:
    assert shell.run("%%ortlens -o lens  # kept\ny = fast(x)\ny.shape") is None
    assert shell.result.result == (2, 4)
    assert "Out[" in shell.out
    assert len(shell["lens"].sessions) == 1
    assert f"In[{shell.shell.execution_count - 1}]: torch.compile" in shell.out
    torch.testing.assert_close(shell["y"], shell["x"] * 2 + 1)


def test_the_lines_of_a_cell_are_the_users(shell: Shell) -> None:
    shell.run("%%ortlens -o lens --quiet\n\ndef g(a):\n    return a - 3\ntorch.compile(g, backend='ortlens')(x)")
    (place,) = set(zip(shell["lens"].nodes.file, shell["lens"].nodes.line, shell["lens"].nodes.source, strict=True))
    assert place == (f"In[{shell.shell.execution_count - 1}]", 4, "return a - 3")


def test_a_cell_that_raises_shows_keeps_and_writes_what_there_was(shell: Shell, tmp_path: Path) -> None:
    error = shell.run("%%ortlens -o lens --report run.html\nfast(x)\n1 / 0\nfast(x, x)")
    assert isinstance(error, ZeroDivisionError)
    assert shell.out.count("ZeroDivisionError: division by zero") == 1
    assert "line 3" in shell.out
    assert "magics.py" not in shell.out
    assert "torch.compile with backend ortlens" in shell.out
    assert len(shell["lens"].graphs) == 1
    assert (tmp_path / "run.html").is_file()
    assert CURRENT.get() is None


def test_an_interrupted_cell_too(shell: Shell) -> None:
    assert isinstance(shell.run("%%ortlens -o lens\nfast(x)\nraise KeyboardInterrupt"), KeyboardInterrupt)
    assert "torch.compile with backend ortlens" in shell.out
    assert len(shell["lens"].graphs) == 1


def test_a_cell_that_awaits(shell: Shell) -> None:
    cell = "%%ortlens -o lens --quiet\nimport asyncio\nawait asyncio.sleep(0)\ny = fast(x)\nawait asyncio.sleep(0)\ny.shape"
    assert shell.run(cell) is None
    assert shell.result.result == (2, 4)
    assert len(shell["lens"].sessions) == 1
    assert CURRENT.get() is None


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


def test_two_cells_do_not_mix(shell: Shell) -> None:
    shell.run("%%ortlens -o one --quiet\nfast(x)")
    shell.run("torch.compile(lambda a: a - 5, backend='ortlens')(x)")
    shell.run("%%ortlens -o two --quiet\ntorch.compile(lambda a: a / 7, backend='ortlens')(x)")
    assert set(shell["one"].nodes.target) == {"aten.mul.Tensor", "aten.add.Tensor"}
    assert set(shell["two"].nodes.target) == {"aten.div.Tensor"}


def test_a_cell_inside_a_cell_does_not_end_it(shell: Shell) -> None:
    shell.run("%%ortlens -o lens --quiet\nget_ipython().run_cell('1 + 1', silent=True)\nget_ipython().run_cell('2')\nfast(x)")
    assert len(shell["lens"].sessions) == 1


@pytest.mark.parametrize("below", ["%timeit -n1 -r1 fast(x)", "%%time\nfast(x)", "%%capture out\nfast(x)"])
def test_other_magics_below(shell: Shell, below: str) -> None:
    assert shell.run(f"%%ortlens -o lens --quiet\n{below}") is None
    assert len(shell["lens"].sessions) == 1


def test_below_another_magic(shell: Shell) -> None:
    assert shell.run("%%time\n%%ortlens -o lens --quiet\nfast(x)") is None
    assert len(shell["lens"].sessions) == 1
    assert type(shell.run("%%timeit -n2 -r2\n%%ortlens --quiet\nfast(x)")).__name__ == "UsageError"
    assert "use it once" in shell.err
    assert shell.run("%%ortlens -o other --quiet\nfast(x)") is None  # nothing is left open


def test_called_by_a_script(shell: Shell) -> None:
    assert shell.run("get_ipython().run_cell_magic('ortlens', '-o lens --quiet', 'y = fast(x)\\ny.shape')") is None
    assert len(shell["lens"].sessions) == 1
    error = shell.run("get_ipython().run_cell_magic('ortlens', '-o late --quiet', 'fast(x)\\n1 / 0')")
    assert isinstance(error, ZeroDivisionError)
    assert shell.out.count("ZeroDivisionError: division by zero") == 1
    assert "late" in shell.shell.user_ns


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nope", "--nope is not an option"),
        ("--reprot x.html", "did you mean --report?"),
        ("--calls 3", "--calls is an option of %ortlens only"),
        ("--verify", "lens.verify(x)"),
        ("--profile", "%ortlens --profile model(x)"),
        ("-o 'lens", "No closing quotation"),
        ("model(x)", "model(x) is not an option"),
    ],
)
def test_a_wrong_cell_line_runs_nothing_of_the_cell(shell: Shell, line: str, said: str) -> None:
    assert type(shell.run(f"%%ortlens {line}\nran = True")).__name__ == "UsageError"
    assert said in shell.err
    assert "ran" not in shell.shell.user_ns
    assert "Traceback" not in shell.out + shell.err


def test_a_cell_that_compiles_nothing_says_so(shell: Shell) -> None:
    assert shell.run("%%ortlens -o lens\n1 + 1") is None
    assert "this cell compiled nothing" in shell.err
    assert 'torch.compile(model, backend="ortlens")' in shell.err
    assert len(shell["lens"].graphs) == 0


def test_a_cell_with_a_syntax_error(shell: Shell) -> None:
    assert isinstance(shell.run("%%ortlens\n1 +"), SyntaxError)
    assert shell.run("%%ortlens -o lens --quiet\nfast(x)") is None
    assert len(shell["lens"].sessions) == 1


def test_a_terminal_asks_for_lines_until_an_empty_one(shell: Shell) -> None:
    assert CellTransform.has_side_effects
    assert shell.shell.check_complete("%%ortlens -o lens\n")[0] == "incomplete"
    assert shell.shell.check_complete("%%ortlens -o lens\nfast(x)\n")[0] == "incomplete"
    assert shell.shell.check_complete("%%ortlens -o lens\nfast(x)\n\n")[0] == "complete"


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


def test_import_ortlens_loads_no_ipython(run_python: Callable[..., str]) -> None:
    assert run_python("import sys, ortlens; ortlens.load_ipython_extension; print('IPython' in sys.modules)") == "False\n"


def test_a_wrong_selection_of_the_explorer_is_one_short_error(shell: Shell) -> None:
    assert shell.run("%ortlens --calls 1 -o lens model(x)") is None
    assert shell.run("from ortlens.views.widget import Explorer\nview = Explorer(lens.captured())") is None
    error = shell.run("view.selected = 'partition:nope'")
    assert isinstance(error, SelectionError)
    assert error._render_traceback_() == [shell.out.strip()]
    assert shell.out.startswith("SelectionError: 'partition:nope' names nothing in this capture")
    assert len(shell.out) < 300
    assert shell.run("view.close()") is None

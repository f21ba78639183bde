"""The magics themselves: options, a lens, and what is shown, kept and written afterwards."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError as ShellUsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand
from IPython.display import display

from ortlens.errors import OptionalDependencyError, OrtLensError, UnsupportedVersionError, UsageError
from ortlens.job.request import request_from_options
from ortlens.job.work import explained, is_onnx_file, new_lens, onnx_explained, write_outputs
from ortlens.magic.cells import OpenCell
from ortlens.magic.expression import call_from_expression
from ortlens.magic.options import cell_options, line_parser, split_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from ortlens.job.request import Request
    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens

_display: Callable[..., Any] = display  # which IPython leaves without types

_SHORT_HELP = """\
ortlens {version}: torch.compile through ONNX Runtime, explained
  %ortlens model(x)                              compile and call, then show the explorer
  %ortlens -o lens --profile --verify model(x)   profile and verify, and keep the lens
  %%ortlens --report run.html                    record every torch.compile(..., backend="ortlens") of a cell
  %ortlens?                                      all options"""

_NOTHING = "ortlens: nothing was compiled: the expression has no tensor operations, or PyTorch could not trace it."
_NOTHING_IN_CELL = """\
ortlens: this cell compiled nothing through ONNX Runtime. Compile with torch.compile(model, backend="ortlens") in it and call that, or use \
%ortlens model(x). Code compiled in an earlier cell is not compiled again; call torch.compiler.reset() first."""

_OWN_FOLDERS = (str(Path(__file__).parents[1]), contextlib.__file__)


@magics_class
class OrtlensMagics(Magics):
    """`%ortlens` and `%%ortlens`."""

    def __init__(self, shell: Any) -> None:  # noqa: ANN401 - IPython's class is annotated in part
        """Begin without a capture."""
        super().__init__(shell)
        self._shell = shell
        self._open: OpenCell | None = None

    @needs_local_scope
    @no_var_expand
    @line_cell_magic
    def ortlens(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> None:
        """Run PyTorch code through ONNX Runtime with torch.compile, and show what happened.

        One expression::

            %ortlens model(x)
            %ortlens -o lens --profile --verify model(x)
            %ortlens --no-grad --report run.html model(**batch)
            %ortlens --dry-run model(x)            # no memory for weights, nothing runs
            %ortlens --option min_partition_nodes=2 head(body(x)) + bias

        Any expression works. In a call `f(args)`, the arguments are evaluated once and f is compiled. An argument that computes
        with tensors or modules, as in `head(body(x))`, is compiled as well. The value is in `lens.result` (with `-o lens`).
        The target is called for about a second, for stable times; use `--calls 1` if it has side effects.
        An ONNX model is run as it is, without PyTorch, on inputs made from its signature: `%ortlens --profile "model.onnx"`.
        The notebook's gradient mode applies: with gradients, the forward graph of a training step is compiled; `--no-grad`
        compiles for inference.

        A whole cell::

            %%ortlens --report run.html -o lens
            fast = torch.compile(model, backend="ortlens")
            fast(x)

        Everything that the cell compiles with backend="ortlens" is captured. The cell runs as it would without the first line: `await`
        works, its last expression is displayed, and errors look the same. If the cell fails or is interrupted, what was captured
        until then is still shown, kept and written.

        Options of both forms, before the expression:

          -o NAME         keep the lens under this name
          --report FILE   write the report: one HTML file that opens anywhere (also --html)
          --save FILE     save the capture, for ortlens.load (.ortlens)
          --redact        leave paths, source lines and values out of the report
          --quiet         show nothing

        Options of `%ortlens` alone:

          --profile       where the time inside ONNX Runtime goes, kernel by kernel
          --verify        compare every value with PyTorch's
          --budget S      seconds for --profile and for --verify; 60 by default
          --no-grad       without gradients, for inference
          --dry-run       trace and partition only
          --dynamic       compile for any size
          --calls N       number of calls
          --backend NAME  record another backend, such as inductor or eager
          --option K=V    an option of the backend; may be repeated
          --              ends the options, for an expression that starts with a minus
        """
        try:
            with _errors_for_the_shell():
                self._run(line, cell, local_ns or {})
        except Exception as err:  # noqa: BLE001 - raised again, without the frames between the user's line and the user's code
            raise err.with_traceback(_users_part(err.__traceback__))  # noqa: B904 - it is the same

    def open_cell(self, line: str) -> None:
        """Begin to capture what the cell compiles; the first line of a `%%ortlens` cell calls this with its options."""
        with _errors_for_the_shell():
            if self._open is not None:
                raise UsageError("%%ortlens is already active in this cell; use it once, in the first line, with %timeit and others below")
            options = cell_options(line)
            request = request_from_options(options)
            self._open = OpenCell(self._shell, f"In[{self._number()}]", lambda lens: self._cell_over(lens, request, options))

    def close(self) -> None:
        """Stop capturing; the magics leave the shell."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _number(self) -> int:
        """Number of the running cell, as its prompt shows it."""
        return max(len(self._shell.user_ns.get("In", ())) - 1, 0)

    def _run(self, line: str, cell: str | None, names: dict[str, Any]) -> None:
        if cell is not None:
            self._run_body(line, cell)
        elif line.strip() not in ("", "-h", "--help"):
            self._run_line(line, names)
        else:
            from ortlens import __version__

            print(_SHORT_HELP.format(version=__version__))

    def _run_line(self, line: str, names: dict[str, Any]) -> None:
        """Run an expression, looking up names in the calling function first, then in the notebook."""
        options, expression = split_line(line_parser(), line)
        if not expression:
            raise UsageError("%ortlens needs an expression after its options, for example %ortlens model(x)")
        request = request_from_options(options)
        if (file := _onnx_file(expression)) is not None:
            self._finish(_onnx_lens(file, request), request, options, "")
            return
        own = self._shell.user_ns
        call = call_from_expression(expression, own if names is own else {**own, **names}, *self._place(expression))
        lens = new_lens(request, expression)
        try:
            explained(request, lens, call.target, call.args, call.kwargs)
        except BaseException:
            self._finish_quietly(lens, request, options)
            raise
        self._finish(lens, request, options, _NOTHING)

    def _place(self, expression: str) -> tuple[str, int]:
        """A file name for the expression, of which IPython knows the cell, and the number of its line there."""
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way to the line that is running
        while frame is not None and frame.f_globals is not self._shell.user_ns:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 1
        source = "\n" * (line - 1) + expression
        return self._shell.compile.cache(source, self._number(), raw_code=source), line

    def _run_body(self, line: str, cell: str) -> None:
        """Run a cell that did not come through the transformer: one of a script, or of `run_cell_magic`."""
        shell = self._shell
        code = shell.transform_cell(cell)
        file = shell.compile.cache(code, self._number(), raw_code=cell)
        body = shell.compile.ast_parse(code, filename=file).body
        last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
        self.open_cell(line)
        try:
            exec(shell.compile(ast.Module(body, []), file, "exec"), shell.user_ns)  # noqa: S102 - running the user's cell is the job
            exec(shell.compile(ast.Interactive(last), file, "single"), shell.user_ns)  # noqa: S102 - the same, and displays the value
        finally:
            if self._open is not None:
                self._open.end()

    def _cell_over(self, lens: Lens, request: Request, options: argparse.Namespace) -> None:
        self._open = None
        self._finish_quietly(lens, request, options, _NOTHING_IN_CELL)

    def _finish_quietly(self, lens: Lens, request: Request, options: argparse.Namespace, nothing: str = "") -> None:
        """Show, keep and write what there is where another error is on its way, or where one could go nowhere."""
        try:
            self._finish(lens, request, options, nothing)
        except (OrtLensError, OSError) as err:
            print(f"ortlens: {err}", file=sys.stderr)

    def _finish(self, lens: Lens | OnnxLens, request: Request, options: argparse.Namespace, nothing: str) -> None:
        if options.store:
            self._shell.push({options.store: lens})
        if lens.captured().graphs and not options.quiet:
            self._show(lens)
        elif nothing and not lens.captured().graphs:
            print(nothing, file=sys.stderr)
        for line in write_outputs(request, lens):
            print(line)

    def _show(self, lens: Lens | OnnxLens) -> None:
        """The explorer in a notebook, the summary in a terminal; a display that fails must not look like a failing model."""
        try:
            explorer = lens.show() if hasattr(self._shell, "kernel") else None
        except Exception as err:  # noqa: BLE001 - a guard of the lens
            print(f"ortlens: the explorer could not be shown ({type(err).__name__}: {err}); here is the summary", file=sys.stderr)
            explorer = None
        if explorer is None:
            print(lens.summary())
        else:
            _display(explorer)


@contextlib.contextmanager
def _errors_for_the_shell() -> Iterator[None]:
    """IPython shows its own UsageError as one line; ours, about what was typed, becomes one."""
    try:
        yield
    except (UsageError, OptionalDependencyError, UnsupportedVersionError) as err:
        raise ShellUsageError(str(err)) from None


def _onnx_file(expression: str) -> str | None:
    """The file, if the expression is a text that names an ONNX model."""
    try:
        value = ast.literal_eval(expression)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) and is_onnx_file(value) else None


def _onnx_lens(file: str, request: Request) -> OnnxLens:
    if request.verify:
        raise UsageError(f"an ONNX model is verified against its PyTorch module: %ortlens -o lens {file!r}, then lens.verify(module)")
    return onnx_explained(request, file)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where the user's code is entered on; all of it when it never is."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        rest = rest.tb_next
    return rest or trace

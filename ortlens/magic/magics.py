"""The magics themselves: their options, a lens, and what is shown, kept and written afterwards.

A cell that begins with `%%ortlens` runs as the plain cell that it is, with a capture open around it. Its first line becomes a call that
opens the capture; everything below stays, so that IPython itself runs it: numbers of lines, `await`, the last expression's display, an
error or interrupt with its traceback are what they are without the magic. The capture is closed when the shell says that the cell is
over. Rejected: running the body from within the magic, as most cell magics do. The magic is called inside the event loop, where a body
with `await` cannot be run, and errors come twice or with frames of the magic.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError as ShellUsageError
from IPython.core.inputtransformer2 import cell_magic
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand
from IPython.display import display

from ortlens.errors import OptionalDependencyError, OrtLensError, UnsupportedVersionError, UsageError, near_hint
from ortlens.job.options import Parser, add_options, help_lines
from ortlens.job.request import explained, is_onnx_file, new_lens, onnx_explained, request_from_options, write_outputs
from ortlens.magic.expression import call_from_expression
from ortlens.views.wording import MAGIC, Hints

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from ortlens.job.request import Request
    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens


_FIRST_LINE = re.compile(r"%%ortlens(?:[ \t]+(?P<options>.*?))?\s*", re.DOTALL)


_second_magic: Callable[[list[str]], list[str]] = cell_magic  # which IPython leaves without types


class CellTransform:
    """Rewrites the first line of a cell; an input transformer of IPython."""

    has_side_effects = True
    """Not one, but so a terminal goes on to ask for lines until an empty one, as for every cell magic."""

    def __call__(self, lines: list[str]) -> list[str]:
        """Rewrite a cell into as many lines; without `%%ortlens` first and code below it, it stays as it is."""
        match = _FIRST_LINE.fullmatch(lines[0]) if lines else None
        body = lines[1:]
        if match is None or not "".join(body).strip():
            return lines
        opening = f"get_ipython().find_cell_magic('ortlens').__self__.open_cell({(match['options'] or '')!r})\n"
        return [opening, *_second_magic(body)]  # a second magic, as %%time, may stand below


class OpenCell:
    """A capture from now until the cell is over."""

    def __init__(self, shell: InteractiveShell, name: str, when_over: Callable[[Lens], None]) -> None:
        """Begin to record the cell that the shell runs; `when_over` gets the lens, once, after it."""
        from ortlens.lens.lens import capture  # loads torch, which %load_ext should not wait for

        self._shell = shell
        self._when_over = when_over
        self._inner = 0  # cells that run inside this one, through `get_ipython().run_cell`
        self._recording = contextlib.ExitStack()
        self._lens = self._recording.enter_context(capture(name=name))
        shell.events.register("pre_execute", self._begins)
        shell.events.register("post_execute", self._ends)

    def _begins(self) -> None:
        self._inner += 1

    def _ends(self) -> None:
        if self._inner:
            self._inner -= 1
            return
        self.end()

    def end(self) -> None:
        """Stop recording, and hand the lens over."""
        self.close()
        self._when_over(self._lens)

    def close(self) -> None:
        """Stop recording, and hear of no further cell."""
        self._recording.close()
        self._shell.events.unregister("pre_execute", self._begins)
        self._shell.events.unregister("post_execute", self._ends)


_display: Callable[..., Any] = display  # which IPython leaves without types

_SHORT_HELP = """\
ortlens {version}: torch.compile through ONNX Runtime, explained
  %ortlens model(x)                              compile and call, then show the explorer
  %ortlens -o lens --profile --verify model(x)   profile and verify, and keep the lens
  %%ortlens --report run.html                    record every torch.compile(..., backend="ortlens") of a cell
  %ortlens?                                      all options"""

_NOTHING = "ortlens: nothing was compiled: the expression runs no operator of PyTorch, or PyTorch could not trace it."
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

          BOTH

        Options of `%ortlens` alone:

          LINE
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
        options, expression = split_line(parser_of("%ortlens"), line)
        if not expression:
            raise UsageError("%ortlens needs an expression after its options, for example %ortlens model(x)")
        request = request_from_options(options)
        if (file := _onnx_file(expression)) is not None:
            if request.verify:
                hint = f"%ortlens -o lens {file!r}, then lens.verify(module)"
                raise UsageError(f"an ONNX model is verified against its PyTorch module: {hint}")
            self._finish(onnx_explained(request, file), request, options, "")
            return
        own = self._shell.user_ns
        call = call_from_expression(expression, own if names is own else {**own, **names}, *self._place(expression))
        lens = new_lens(request, expression)
        try:
            explained(request, lens, call.target, (call.args, call.kwargs))
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
        lens.hints = Hints("lens", options.store) if options.store else MAGIC
        if options.store:
            self._shell.push({options.store: lens})
        if lens.captured().graphs and not options.quiet:
            self._show(lens)
        elif nothing and not lens.captured().graphs:
            print(nothing, file=sys.stderr)
        for line in write_outputs(request, lens, hints=lens.hints):
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


_ENDS = f"{'--':<20}ends the options, for an expression that starts with a minus"
_LISTED = {"BOTH": help_lines("%%ortlens"), "LINE": [*help_lines("%ortlens", without="%%ortlens"), _ENDS]}
for _name, _lines in _LISTED.items():
    OrtlensMagics.ortlens.__doc__ = (OrtlensMagics.ortlens.__doc__ or "").replace(_name, f"\n{' ' * 10}".join(_lines))


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


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where the user's code is entered on; all of it when it never is."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        rest = rest.tb_next
    return rest or trace


_OPTION = re.compile(r"\s*(?P<name>--?[A-Za-z][\w-]*)(?P<equals>=)?")
_VALUE = re.compile(r"""\s*(?P<value>(?:"[^"]*"|'[^']*'|[^\s"'])+)""")


def parser_of(magic: str) -> argparse.ArgumentParser:
    """Make the parser of the options of `%ortlens` or `%%ortlens`; it raises UsageError."""
    parser = Parser(prog=magic, add_help=False, allow_abbrev=False)
    parser.more = "%ortlens? shows all options"
    add_options(parser, magic)
    return parser


_ASKED = re.compile(r"(?P<magic>%%?ortlens)\b.*?(?P<word>(?<=\s)-[\w-]*)$")


_matcher: Callable[..., Any] = context_matcher()  # likewise


@_matcher
def completed_options(context: CompletionContext) -> SimpleMatcherResult:
    """Complete an option of a magic; a matcher of IPython, beside which names of Python are left out."""
    asked = _ASKED.match(context.text_until_cursor)
    known = parser_of(asked["magic"])._option_string_actions if asked else {}  # noqa: SLF001 - as below
    found = [SimpleCompletion(name, type="option") for name in known if asked and name.startswith(asked["word"])]
    return {"completions": found, "suppress": bool(found), "matched_fragment": asked["word"] if asked else ""}


def split_line(parser: argparse.ArgumentParser, line: str) -> tuple[argparse.Namespace, str]:
    """Take the options off the front of a line, up to `--` at most; what is behind them is Python and stays as it is."""
    words: list[str] = []
    known = parser._option_string_actions  # noqa: SLF001 - argparse offers no other way to ask which options take a value
    while match := _OPTION.match(line):
        action = known.get(match["name"])
        if action is None:
            break
        words.append(match["name"])
        line = line[match.end() :]
        if action.nargs != 0:
            value = _VALUE.match(line)
            words += shlex.split(value["value"]) if value else []
            line = line[value.end() :] if value else line
    rest = line.strip()
    if not rest.startswith("-- ") and (unknown := _OPTION.match(rest)):
        name = unknown["name"]
        if name.startswith("--") or rest[len(name) : len(name) + 1] in ("", " ", "="):  # else it is an expression, as `-model(x)`
            other = "" if name.startswith("--") else " Put -- before an expression that starts with a minus, as in %ortlens -- -x."
            parser.error(f"there is no option {name}.{near_hint(name, known) or other}")
    return parser.parse_args(words), rest.removeprefix("-- ").rstrip("; ").strip()


def cell_options(line: str) -> argparse.Namespace:
    """Read the line of a cell magic; options that mean something for a single call alone are refused."""
    parser = parser_of("%%ortlens")
    try:
        words = shlex.split(line, comments=True)
    except ValueError as err:
        raise UsageError(f"%%ortlens {line}: {err}") from err
    options, more = parser.parse_known_args(words)
    if more:
        _refuse_unknown(parser, more[0])
    return options


def _refuse_unknown(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    name = word.partition("=")[0]
    if name in ("--profile", "--verify"):
        raise UsageError(
            f"{name} calls a model again and needs its arguments, which a cell does not give. Use %ortlens {name} model(x), or keep the "
            f"lens with -o lens and call lens.{name[2:]}(x) after the cell"
        )
    if any(name in action.option_strings for action in parser_of("%ortlens")._actions):  # noqa: SLF001 - as above
        raise UsageError(f"{name} is an option of %ortlens only; in a cell, pass it to torch.compile. %ortlens? shows all options")
    near = near_hint(name, parser._option_string_actions) if name.startswith("--") else ""  # noqa: SLF001 - as above
    parser.error(f"{word} is not an option of %%ortlens.{near or ' The code goes in the lines below.'}")

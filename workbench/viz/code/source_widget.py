"""Source lens: a kernel's source with the accesses, layouts and instructions of each line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_name, check_type, in_brief
from workbench.lens.compile import KINDS, CompiledStep
from workbench.lens.trace import StepTrace
from workbench.viz.base.canvas import CanvasWidget
from workbench.viz.base.style import THEMES, check_callable
from workbench.viz.base.widget import require_ipywidgets
from workbench.viz.base.words import bytes_text
from workbench.viz.code.compiled_lines import LayoutOf, target_fact, target_scene
from workbench.viz.code.line_facts import LineFacts
from workbench.viz.code.listing import FunctionText
from workbench.viz.code.source_figure import describe_figure, source_figure
from workbench.viz.layouts.layout_maps import number_colors

Compile = Callable[[], CompiledStep]

MOST_TARGETS = 4


def source_lens(
    trace: StepTrace,
    compiled: Mapping[str, CompiledStep],
    source: Sequence[FunctionText],
    *,
    theme: str | None = None,
) -> Figure:
    """Draw a kernel's source with the bytes that each line requests and its instructions for each target.

    A line that calls a tile operator includes the operator's bytes; the operator's own lines follow below.

    Args:
        trace: trace of one step, such as `lens.trace(launch)[0]`.
        compiled: the same step from `lens.compile` for up to four targets, by the name to show.
        source: the kernel, then the tile operators that it calls.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, there are more than
            four targets, or trace, compiled step and source are of different kernels.
        UnknownNameError: the theme is unknown.
    """
    data = LineFacts.checked(trace, compiled, source)
    _check_all_compiled(compiled)
    return source_figure(data, compiled, None, theme)


def describe_source_lens(
    trace: StepTrace, compiled: Mapping[str, CompiledStep], source: Sequence[FunctionText]
) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    data = LineFacts.checked(trace, compiled, source)
    _check_all_compiled(compiled)
    return describe_figure(data, compiled)


class SourceLensWidget(CanvasWidget):
    """Source lens as a widget: select a line, by click or arrow keys, to see all its facts.

    The facts are the line's accesses in the trace, with the elements that the first program touches, and for
    each chosen target the layouts of its tensors, drawn, and its instructions. The static figure is
    :func:`source_lens`.

    Args:
        trace, source, theme: as for :func:`source_lens`.
        compiled: by the name to show, the compiled step of each target, or a function that compiles it when
            the target is first chosen.
        shown: initial targets, at most four; by default the first two.
        layout_of: function from a tensor's layout and a target's name to the layout to draw, or None for a
            tensor that cannot be drawn; by default no layouts are drawn.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as :func:`source_lens`.
        UnknownNameError: the theme or a target in `shown` is unknown.
        MissingPackageError: anywidget or ipywidgets is not installed.
        Exception: whatever a function in `compiled` raises for an initial target.
    """

    scripts = ("source_lens.js",)

    def __init__(
        self,
        trace: StepTrace,
        compiled: Mapping[str, CompiledStep | Compile],
        source: Sequence[FunctionText],
        *,
        shown: Sequence[str] | None = None,
        layout_of: LayoutOf | None = None,
        theme: str | None = None,
    ) -> None:
        self._data = LineFacts.checked(trace, compiled, source)
        if layout_of is not None:
            fix = "Give a function from a TensorLayout and a target's name to a layout or None."
            check_callable("layout_of", layout_of, fix)
        first = _checked_shown(shown, compiled)
        self._compiled, self._layout_of = dict(compiled), layout_of
        self._scenes: dict[str, Mapping[str, Any]] = {}
        self._shown: dict[str, CompiledStep] = {}
        self.steps = len(self._data.listing)
        widgets = require_ipywidgets()
        self.targets = {
            name: widgets.Checkbox(
                name in first,
                description=name,
                indent=False,
                layout={"width": "auto", "margin": "0 1.2em 0 0"},
            )
            for name in compiled
        }
        row = [widgets.Label("compiled for", layout={"margin": "0 1em 0 0"}), *self.targets.values()]
        super().__init__(row, theme=theme)
        self.step = self._data.busiest

    @property
    def chosen(self) -> tuple[str, ...]:
        """The shown targets. Can be set."""
        return tuple(name for name, box in self.targets.items() if box.value)

    @chosen.setter
    def chosen(self, names: Sequence[str]) -> None:
        wanted = _checked_shown(names, self._compiled)
        with self.held():
            for name, box in self.targets.items():
                box.value = name in wanted
        self.attempt(self.redraw)

    def scene(self) -> Mapping[str, Any]:
        """Return the source, each line's accesses, and each chosen target's instructions and layouts."""
        chosen = self.chosen
        if len(chosen) > MOST_TARGETS:
            raise InvalidArgumentError(
                "targets",
                f"{len(chosen)} are chosen",
                f"Choose at most {MOST_TARGETS}: more have no room side by side.",
            )
        self._shown = {name: self._step(name) for name in chosen}
        for box in self.targets.values():
            box.disabled = len(chosen) == MOST_TARGETS and not box.value
        data = self._data
        return {
            "kernel": data.trace.kernel,
            "functions": data.listing.scene(),
            "firsts": data.listing.firsts,
            "rows": [data.row_scene(row) for row in data.rows],
            "lineRows": data.line_rows,
            "lineBytes": data.line_bytes,
            "lineBytesTexts": [bytes_text(count) for count in data.line_bytes],
            "kinds": list(KINDS),
            "targets": [self._target_scene(name) for name in self._shown],
            "colors": {
                theme: {str(count): number_colors(count, theme) for count in (32, 64)} for theme in THEMES
            },
        }

    def draw(self, theme: str) -> Figure:
        """Draw the source with bytes and instructions of each line for the chosen targets."""
        return source_figure(self._data, self._shown, self._line, theme)

    def describe(self) -> str:
        """Return the text alternative, as :func:`describe_source_lens` does, for the chosen targets."""
        return describe_figure(self._data, self._shown)

    @property
    def facts(self) -> tuple[str, ...]:
        """Facts about the selected line."""
        data, line = self._data, self._line
        lines = [f"{data.listing.name(line)}: {data.listing.text(line).strip()}"]
        lines += [". ".join([row.title, *data.facts(row)]) for row in data.rows_of(line)]
        lines += [target_fact(data, name, step, line) for name, step in self._shown.items()]
        return tuple(lines)

    @property
    def _line(self) -> int:
        """First line of the selected statement."""
        return self._data.listing.firsts[self.step]

    def _step(self, name: str) -> CompiledStep:
        """Return a target's compiled step; compile it if necessary."""
        step = self._compiled[name]
        if not isinstance(step, CompiledStep):
            self.say(f"Compiling {self._data.trace.kernel} for {name} …")
            step = step()
            check_type(f"compiled[{name!r}]", step, CompiledStep, "Return a CompiledStep from the function.")
            self._data.check_same_kernel(name, step)
            self._compiled[name] = step
        return step

    def _target_scene(self, name: str) -> Mapping[str, Any]:
        if name not in self._scenes:
            self._scenes[name] = target_scene(self._data, name, self._shown[name], self._layout_of)
        return self._scenes[name]


def _check_all_compiled(compiled: Mapping[str, CompiledStep]) -> None:
    for name, step in compiled.items():
        check_type(f"compiled[{name!r}]", step, CompiledStep, "Give what lens.compile returns for the step.")
    if len(compiled) > MOST_TARGETS:
        raise InvalidArgumentError(
            "compiled",
            f"got {len(compiled)} targets",
            f"Give at most {MOST_TARGETS}: more have no room beside the source.",
        )


def _checked_shown(shown: Sequence[str] | None, known: Mapping[str, object]) -> tuple[str, ...]:
    if shown is None:
        return tuple(known)[:2]
    if isinstance(shown, str) or not isinstance(shown, Sequence):
        raise ArgumentTypeError(
            "shown", f"got {in_brief(shown)}, a {type(shown).__name__}", 'Give a list such as ["sm_90"].'
        )
    for name in shown:
        check_name("shown", name, known)
    if len(set(shown)) > MOST_TARGETS:
        fix = f"Give at most {MOST_TARGETS}: more have no room side by side."
        raise InvalidArgumentError("shown", f"got {len(set(shown))} targets", fix)
    return tuple(shown)

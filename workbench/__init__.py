"""A workbench for GPU kernel engineering: learn it, look inside, measure.

Importing it decides what runs kernels in this process (a GPU, or Triton's interpreter), so it comes before
`import triton`.
"""

from workbench import device as _device

_device.choose()

# Triton is imported from here on, after the choice.
from workbench import compat as _compat  # noqa: E402
from workbench import interpreter as _interpreter  # noqa: E402
from workbench import launch as _launch  # noqa: E402
from workbench import renamed as _renamed  # noqa: E402
from workbench.interpreter import libdevice as _libdevice  # noqa: E402
from workbench.interpreter import numbers as _numbers  # noqa: E402
from workbench.launch import Launch, Step, Work  # noqa: E402

_renamed.install()
_compat.tell_functions_in_tuples_apart()
_compat.let_marks_change_ptx()
_compat.repair_compilers()
_compat.let_errors_know_their_functions()
if _device.is_interpreter():
    _compat.repair_interpreter()
    _numbers.repair()
    _libdevice.repair()
    _compat.guard_interpreted_kernels(_launch.guarded, _interpreter.is_watching)

__all__ = ["Launch", "Step", "Work"]

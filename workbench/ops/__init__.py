"""Client API: functions with torch's own names and signatures, run by the kernels of this package.

Each picks a template and an instance, launches, and returns what torch would: same broadcasting, dtypes,
strides and errors; autograd where torch has it. One file a family of operators.
"""

from workbench.ops.elementwise import add
from workbench.ops.transfer import clone, permute_copy, transpose_copy

__all__ = ["add", "clone", "permute_copy", "transpose_copy"]

"""The operators, a page a family: what each means, costs and may err, its cases, instances and baselines.

A page is a module with a tuple `SPECS` of :class:`OperatorSpec`. Tests, suites, the profiler and the table in
docs/operators.md read the specs, so adding an operator means adding one page.
"""

from workbench.operators.accuracy import EXACT, Accuracy, exact, sum_accuracy
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.instance import Instance, instances_of
from workbench.operators.parts import by_rows, some_rows
from workbench.operators.registry import named, register, specs
from workbench.operators.spec import OperatorSpec, gradient_of

__all__ = [
    "EXACT",
    "Accuracy",
    "Arguments",
    "Draw",
    "Instance",
    "OperatorSpec",
    "by_rows",
    "exact",
    "given",
    "gradient_of",
    "instances_of",
    "named",
    "register",
    "some_rows",
    "specs",
    "sum_accuracy",
]

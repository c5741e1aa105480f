"""Exercises with their checks, hints and wrong answers; predictions; and the learner's progress."""

from workbench.teach.check import Verdict
from workbench.teach.course import (
    Progress,
    exercise,
    exercises,
    progress,
    reset_progress,
    solution_explanation,
    solution_text,
    stub_text,
)
from workbench.teach.exercise import Exercise
from workbench.teach.prediction import Prediction, predict

__all__ = [
    "Exercise",
    "Prediction",
    "Progress",
    "Verdict",
    "exercise",
    "exercises",
    "predict",
    "progress",
    "reset_progress",
    "solution_explanation",
    "solution_text",
    "stub_text",
]

"""The exercises, one module a lesson."""

from workbench.teach.exercises import lesson_00, lesson_02

ALL = (*lesson_00.EXERCISES, *lesson_02.EXERCISES)

"""The exercises, with one module for each lesson."""

from workbench.teach.exercises import (
    lesson_00,
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
    lesson_09,
    lesson_10,
    lesson_11,
    lesson_12,
    lesson_13,
)

ALL = (
    *lesson_00.EXERCISES,
    *lesson_01.EXERCISES,
    *lesson_02.EXERCISES,
    *lesson_03.EXERCISES,
    *lesson_04.EXERCISES,
    *lesson_05.EXERCISES,
    *lesson_06.EXERCISES,
    *lesson_07.EXERCISES,
    *lesson_08.EXERCISES,
    *lesson_09.EXERCISES,
    *lesson_10.EXERCISES,
    *lesson_11.EXERCISES,
    *lesson_12.EXERCISES,
    *lesson_13.EXERCISES,
)

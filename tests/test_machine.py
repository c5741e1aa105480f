"""A timed test has the machine to itself."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.machine import Machine


def test_a_timed_test_waits_for_others_and_goes_before_late_ones(tmp_path: Path, machine: Machine) -> None:
    """Three processes, each with its own files, are simulated in one: locks belong to open files."""
    with ExitStack() as opened:
        busy, timed, late = (opened.enter_context(closing(type(machine)(tmp_path))) for _ in range(3))
        assert _order_of(busy, timed, late) == ["busy", "timed", "late"]


def test_times_are_counted_as_on_the_reference_machine(machine: Machine) -> None:
    """The quickest run counts, and a slow machine does not change the count."""
    slowness = machine.slowness()
    assert slowness >= 1
    least = machine.least_seconds([lambda: time.sleep(0.2), lambda: time.sleep(0.05)], time.perf_counter)
    assert 0.05 / (2 * slowness + 1) < least < 0.2
    spent = machine.least_seconds([lambda: sum(range(10**6))])
    assert 0 < spent < 0.1


def _order_of(busy: Machine, timed: Machine, late: Machine) -> list[str]:
    order: list[str] = []

    def time_it() -> None:
        with timed.shared(), timed.alone():
            order.append("timed")

    def come_late() -> None:
        with late.shared():
            order.append("late")

    with busy.shared():
        threads = [Thread(target=time_it)]
        threads[0].start()
        threads[0].join(0.2)
        threads.append(Thread(target=come_late))
        threads[1].start()
        threads[1].join(0.2)
        assert order == []
        order.append("busy")
    for thread in threads:
        thread.join(10)
    return order

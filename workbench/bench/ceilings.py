"""Measure a device's roofs: the bandwidth of a copy, and the rate of matrix products by the vendor's library.

Datasheet numbers are never used as roofs: clocks fall under load, and no program reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import torch

from workbench import device
from workbench.bench import baseline, data, recording
from workbench.bench.recording import Line
from workbench.bench.roofline import Ceilings
from workbench.bench.timing import interpreter_time_error, measure, measure_together
from workbench.errors import InvalidArgumentError, NotMeasurableError, check_each, check_name

PRODUCT_DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp8_e4m3")

# The memory that `do_bench` overwrites to flush the caches, plus the workspace of libraries.
SPARE_BYTES = 2**29

_COPY_BYTES = (2**26, 2**28, 2**30)
_ROUNDS, _REP_MS = 2, 20


def measure_ceilings(dtypes: Sequence[str] = PRODUCT_DTYPES) -> Ceilings:
    """Measure this device's roofs, in a few seconds.

    Bandwidth: the best of `torch.clone` over copies of 64 MiB to 1 GiB, bytes read and written per second.
    Matrix rates: the best of the vendor's libraries over square products of :func:`roof_sizes`, on
    random-normal inputs. Sizes that do not fit into free memory are left out, and dtypes for which
    :func:`workbench.bench.data.product_absence` gives a reason.

    Args:
        dtypes: names of dtypes whose products to measure.

    Raises:
        NotMeasurableError: no GPU runs kernels here, or its memory is full.
        UnknownNameError: a dtype is unknown. ArgumentTypeError, InvalidArgumentError: `dtypes` is not a list
            of names, or is empty.
    """
    here = device.current()
    dtypes = check_each("dtypes", dtypes, str, "Give names in a list, such as ['fp16', 'bf16'].")
    if not dtypes:
        raise InvalidArgumentError("dtypes", "got none", f"Name some of {', '.join(PRODUCT_DTYPES)}.")
    wanted = [dtype for dtype in dtypes if not data.product_absence(dtype, here)]
    if not here.is_gpu:
        raise interpreter_time_error("Take the ceilings of a recording, with `from_recording`.")
    torch.cuda.empty_cache()
    free = device.free_memory_bytes()
    room = free - SPARE_BYTES
    copies = [size for size in _COPY_BYTES if 2 * size <= room]
    sizes = {dtype: [n for n in roof_sizes(dtype) if 3 * n * n * 4 <= room] for dtype in wanted}
    if not copies or not all(sizes.values()):
        raise NotMeasurableError(
            f"{free / 1e9:.2f} GB of device memory are free: too little to measure. "
            "Close other programs that use the GPU."
        )
    measured = Ceilings(
        bandwidth=max(map(_copy_bandwidth, copies)),
        matrix={dtype: max(_product_rate(size, dtype) for size in sizes[dtype]) for dtype in wanted},
        device=here.name,
        when=datetime.now(UTC).date().isoformat(),
        recorded=False,
    )
    torch.cuda.empty_cache()
    return measured


def roof_sizes(dtype: str) -> tuple[int, ...]:
    """Return the sizes of square products that reach a device's highest rate: 4096 and 8192.

    For fp32 only 4096: 8192 takes eight times as long, and on an H200 its rate is the same within a percent.

    Raises:
        UnknownNameError: it is not the name of a floating-point dtype.
    """
    check_name("dtype", dtype, recording.FLOATS)
    return (4096,) if dtype == "fp32" else (4096, 8192)


def from_recording(lines: Iterable[Line], *, recorded: bool = True) -> Ceilings:
    """Return the roofs in a run's lines: its best `clone` by "torch", and its best vendor product per dtype.

    Args:
        lines: lines of one device; only those timed by events count.
        recorded: False if they were measured just now.

    Raises:
        InvalidArgumentError: the lines are of several devices, or have no copy or no vendor product.
        ArgumentTypeError: `lines` are not Lines.
    """
    lines = recording.select(lines, mode="events")
    devices = sorted({line.device for line in lines})
    if len(devices) > 1:
        raise InvalidArgumentError("lines", f"of {' and '.join(devices)}", "Select the lines of one device.")
    copies, products = _copies(lines), _products(lines)
    if not copies or not products:
        missing = "copy (op clone by torch)" if not copies else "product (op matmul) by a vendor's library"
        raise InvalidArgumentError(
            "lines", f"no {missing} timed by events", "Give lines of a run of the suite 'ceilings' or 'all'."
        )
    return Ceilings(
        bandwidth=max(line.gb_per_s * 1e9 for line in copies if line.gb_per_s),
        matrix={
            dtype: max(line.tflops * 1e12 for line in recording.select(products, dtype=dtype) if line.tflops)
            for dtype in recording.DTYPES
            if recording.select(products, dtype=dtype)
        },
        device=devices[0],
        when=max(line.when for line in lines)[:10],
        recorded=recorded,
    )


def has_roofs(lines: Iterable[Line]) -> bool:
    """Return whether :func:`from_recording` finds a copy and a vendor product in these lines.

    Raises:
        ArgumentTypeError: they are not Lines.
    """
    lines = recording.select(lines, mode="events")
    return bool(_copies(lines) and _products(lines))


def _copies(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if (line.op, line.provider) == ("clone", "torch") and line.bytes]


def _products(lines: Iterable[Line]) -> list[Line]:
    vendors = {name for names in baseline.VENDOR_LIBRARIES.values() for name in names}
    return [line for line in lines if line.op == "matmul" and line.provider in vendors and line.flops]


def _copy_bandwidth(size: int) -> float:
    source = data.normal((size // 4,), "fp32")
    copied = measure(partial(torch.clone, source), rep_ms=_ROUNDS * _REP_MS)
    return 2 * size / (copied.median_ms / 1e3)


def _product_rate(size: int, dtype: str) -> float:
    a, b = data.matrices(size, size, size, dtype, baseline.product_layout(dtype))
    libraries = baseline.product_libraries(dtype)
    products = {name: baseline.get(name).call(baseline.product, a, b) for name in libraries}
    with baseline.precision(dtype):
        measured = measure_together(products, rounds=_ROUNDS, rep_ms=_ROUNDS * _REP_MS)
    return 2 * size**3 / (min(product.median_ms for product in measured.values()) / 1e3)

"""Machines that tests pretend to have, or plan launches for."""

from __future__ import annotations

from dataclasses import replace

from workbench import device

H200 = device.named("sm_90")
H100 = replace(H200, name="NVIDIA H100 80GB HBM3", l2_bytes=50 << 20)
A100 = device.named("sm_80")
# Few compute units: the smallest Ada card.
RTX_4060 = replace(device.named("sm_89"), name="NVIDIA GeForce RTX 4060", compute_units=24, l2_bytes=24 << 20)
RTX_5090 = device.named("sm_120")
MI300X = device.named("gfx942")

# Machines for tests of choosers: many units and few, with descriptors and without, warps of 32 and of 64.
CHOOSING = {"H200": H200, "A100": A100, "RTX 4060": RTX_4060, "MI300X": MI300X}

"""The parts that figures and widgets are made of: style, panels, canvas, controls and words."""

# %% [markdown]
# # A stand-in lesson
#
# It has one of each thing that a lesson may have; tests build it, run it and plant faults in copies of it.
# See [its source](source/00_stand_in.py) and [the widget](#Turn-the-knob).

# %%
import base64
import io
import time

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display

# %% [markdown]
# A GPU that copies 4 TB/s <!-- unmeasured: an example --> is fast.

# %%
print("one fact")
sum([2, 3])

# %% tags=["nbval-ignore-output"]
print(time.time())

# %%
plt.figure(figsize=(3, 2))
plt.plot([0, 1], [1, 0])
plt.show()

# %% [markdown]
# *Figure: a line that falls from one
# to zero.*
#
# ## Turn the knob


# %% tags=["widget"]
def draw(bars):
    figure, axes = plt.subplots(figsize=(3, 2))
    axes.bar(range(bars), range(1, bars + 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


slider = ipywidgets.IntSlider(3, 1, 9, description="bars")
image = ipywidgets.Image(value=draw(3))
slider.observe(lambda change: setattr(image, "value", draw(change.new)), "value")
picture = {
    "text/plain": "Rising bars, as many as the slider says.",
    "image/png": base64.b64encode(image.value).decode(),
}
display(ipywidgets.VBox([slider, image])._repr_mimebundle_() | picture, raw=True)

# %% [markdown]
# ### Takeaways
#
# A lesson ends.

// Common parts of all views: data, colors, a frame with controls, a status line. Each view's file is appended.

const NUMBERS = {
  int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array,
};

// Restore the typed arrays of a scene that Python packed; each has a `shape`.
function arrays(value) {
  if (Array.isArray(value)) return value.map(arrays);
  if (value === null || typeof value !== "object") return value;
  if (value.bytes instanceof DataView) {
    const { buffer, byteOffset, byteLength } = value.bytes;
    const numbers = new NUMBERS[value.dtype](buffer.slice(byteOffset, byteOffset + byteLength));
    return Object.assign(numbers, { shape: value.shape });
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, arrays(item)]));
}

// Create an HTML element from its attributes (`class`, `aria-label`, ...) and its children, elements or texts.
function html(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Return a number with its noun: "1 program", "3 programs".
function count(number, noun, nouns = `${noun}s`) {
  return `${number} ${number === 1 ? noun : nouns}`;
}

// Return [red, green, blue] of "#rrggbb".
function rgb(color) {
  return [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
}

// Mix two colors: `one` for share 0, `other` for share 1.
function mix(one, other, share) {
  const [a, b] = [rgb(one), rgb(other)];
  return `#${a.map((v, i) => Math.round(v + (b[i] - v) * share).toString(16).padStart(2, "0")).join("")}`;
}

// Return a color as its value in a Uint32Array over ImageData.
function pixel(color) {
  const [red, green, blue] = rgb(color);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// Return "light" or "dark": the chosen theme, else the page's.
function themeOf(model) {
  const light = document.body.dataset.jpThemeLight;
  const page = light === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : light === "false";
  return model.get("theme") || (page ? "dark" : "light");
}

// Keys that both our controls and the notebook handle: there Enter edits a cell and arrows select another.
const KEYS = new Set([
  "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Enter", " ", "Escape",
]);

// Create the root element of a view in the theme's colors; call `recolored` when the page's theme changes.
// Returns {root, theme(), palette()}.
function frame(model, el, signal, recolored) {
  const root = html("div", { class: "workbench-view", role: "group", "aria-label": model.get("alt") });
  const palette = () => model.get("palettes")[themeOf(model)];
  let theme = null;
  const color = () => {
    if (theme === themeOf(model)) return false;
    theme = themeOf(model);
    const { background, ink, muted, grid, series } = palette();
    for (const [name, value] of Object.entries({ background, ink, muted, grid, accent: series[0] }))
      root.style.setProperty(`--workbench-${name}`, value);
    root.style.colorScheme = theme;
    return true;
  };
  color();
  root.addEventListener("keydown", event => {
    if (KEYS.has(event.key) && !event.shiftKey && !event.ctrlKey && !event.metaKey) event.stopPropagation();
  });
  el.replaceChildren(root);
  const watcher = new MutationObserver(() => color() && recolored());
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  signal.addEventListener("abort", () => watcher.disconnect());
  listen(model, "change:alt", () => root.setAttribute("aria-label", model.get("alt")), signal);
  return { root, theme: () => themeOf(model), palette };
}

// Listen to the model until the view is removed.
function listen(model, event, heard, signal) {
  model.on(event, heard);
  signal.addEventListener("abort", () => model.off(event, heard));
}

// Set a value and send it to Python; the model's own listeners are called at once.
function put(model, name, value) {
  model.set(name, value);
  model.save_changes();
}

// Create a line of text that screen readers read when it changes.
function statusLine() {
  return html("div", { class: "workbench-status", role: "status", "aria-live": "polite" });
}

// Create a row: play button, label, range slider, text. Each move calls `moved(value)`; playing advances it
// by one every `period` milliseconds and stops at the last value.
// Returns {row, slider, set(value, last, text)}.
function stepper({ label, title, period, signal, moved }) {
  const slider = html("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": label });
  const button = html("button", { type: "button", title: `play: ${title}`, "aria-label": `play: ${title}` }, "▶");
  // Not an <output>: screen readers would read it in addition to the slider's text and the status line.
  const text = html("span", { "aria-hidden": "true" });
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶";
    button.setAttribute("aria-pressed", "false");
  };
  const next = () => {
    if (!slider.isConnected || Number(slider.value) >= Number(slider.max)) return stop();
    moved(Number(slider.value) + 1);
    if (Number(slider.value) >= Number(slider.max)) stop();
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= Number(slider.max)) moved(Number(slider.min));
    button.textContent = "❚❚";
    button.setAttribute("aria-pressed", "true");
    timer = setInterval(next, period);
  });
  slider.addEventListener("input", () => { stop(); moved(Number(slider.value)); });
  signal.addEventListener("abort", stop);
  const row = html("div", { class: "workbench-row" }, button, html("label", {}, label), slider, text);
  const set = (value, last, words) => {
    slider.max = last;
    slider.value = value;
    slider.disabled = button.disabled = last <= Number(slider.min);
    slider.setAttribute("aria-valuetext", words);
    text.textContent = words;
  };
  return { row, slider, set };
}

// Create a legend of colored squares from [[color or CSS background, text], ...].
function legend(entries) {
  const swatch = background => {
    const made = html("i", { "aria-hidden": "true" });
    made.style.background = background;
    return made;
  };
  const items = entries.map(([background, text]) => html("span", {}, swatch(background), text));
  return html("div", { class: "workbench-legend" }, ...items);
}

// Create a canvas with this size in CSS pixels, sharp on any screen, and return its 2D context.
function canvasOf(width, height, attributes = {}) {
  const ratio = window.devicePixelRatio || 1;
  const canvas = html("canvas", {
    width: Math.round(width * ratio), height: Math.round(height * ratio), ...attributes,
  });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// Return what a view's file exports. `show(model, el, signal)` fills the element; the signal ends everything.
function rendering(show) {
  return {
    render({ model, el }) {
      const life = new AbortController();
      show(model, el, life.signal);
      return () => life.abort();
    },
  };
}

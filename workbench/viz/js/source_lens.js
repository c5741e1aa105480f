// Source of a kernel. For the selected line, panels show side by side its accesses in the trace and, for each
// target, its layouts and its instructions.

const LENS_STYLE = `
.workbench-lens-tree {
  border: 1px solid var(--workbench-grid); border-radius: 3px; max-height: 440px; overflow: auto; position: relative;
}
.workbench-lens-tree:focus-visible { outline: 2px solid var(--workbench-accent); outline-offset: 1px; }
.workbench-lens-lines { min-width: max-content; }
.workbench-lens-line {
  column-gap: 6px; cursor: pointer; display: grid; font-size: 12px; grid-template-columns: var(--workbench-lens-columns);
  line-height: 18px; padding-right: 10px;
}
.workbench-lens-line > * { padding: 0 4px; white-space: pre; }
.workbench-lens-line > :not(:last-child) { font-variant-numeric: tabular-nums; text-align: right; }
.workbench-lens-line > :first-child { color: var(--workbench-muted); }
.workbench-lens-line > :last-child { font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.workbench-lens-line:hover { background: color-mix(in srgb, var(--workbench-grid) 55%, transparent); }
.workbench-lens-line[aria-selected="true"] {
  background: var(--workbench-grid); box-shadow: inset 3px 0 var(--workbench-accent);
}
.workbench-lens-line.workbench-lens-called { box-shadow: inset 3px 0 var(--workbench-muted); }
.workbench-lens-line.workbench-lens-head {
  background: var(--workbench-background); border-bottom: 1px solid var(--workbench-grid); cursor: default;
  position: sticky; top: 0;
}
.workbench-lens-head > :last-child { color: var(--workbench-muted); font-family: inherit; }
.workbench-lens-function { color: var(--workbench-muted); cursor: pointer; padding: 3px 8px; }
.workbench-lens-function b { color: var(--workbench-ink); }
.workbench-lens-function.workbench-lens-active, .workbench-lens-function:hover { background: var(--workbench-grid); }
.workbench-lens-room { container-type: inline-size; }
.workbench-lens-panels { display: grid; gap: 14px 24px; grid-template-columns: minmax(0, 1fr); }
.workbench-lens-panels > :first-child { grid-column: 1 / -1; }
.workbench-lens-panels > :first-child .workbench-lens-item { display: inline-flex; margin-right: 24px; max-width: 30em; }
@container (min-width: 520px) {
  .workbench-lens-panels[data-targets="2"], .workbench-lens-panels[data-targets="3"],
  .workbench-lens-panels[data-targets="4"] { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@container (min-width: 900px) {
  .workbench-lens-panels[data-targets="1"] { grid-template-columns: minmax(0, 1fr) minmax(0, 2fr); }
  .workbench-lens-panels[data-targets="2"], .workbench-lens-panels[data-targets="3"] {
    grid-template-columns: repeat(3, minmax(0, 1fr));
  }
  .workbench-lens-panels[data-targets="4"] { grid-template-columns: repeat(4, minmax(0, 1fr)); }
  .workbench-lens-panels[data-targets="1"] > :first-child,
  .workbench-lens-panels[data-targets="2"] > :first-child { grid-column: auto; }
}
.workbench-lens-panels section { min-width: 0; }
.workbench-lens-panels h4 { font-size: 13px; margin: 0 0 2px; }
.workbench-lens-panels h5 { color: var(--workbench-muted); font-size: 12px; font-weight: normal; margin: 10px 0 3px; }
.workbench-lens-badge {
  border: 1px solid var(--workbench-muted); border-radius: 8px; font-size: 11px; font-weight: normal; margin-left: 6px;
  padding: 0 6px;
}
.workbench-lens-small { color: var(--workbench-muted); font-size: 12px; overflow-wrap: break-word; }
.workbench-lens-item { align-items: flex-start; display: flex; flex-wrap: wrap; gap: 4px 10px; margin: 0 0 8px; }
.workbench-lens-item > div { flex: 1 1 160px; min-width: 0; }
.workbench-lens-item canvas { border: 1px solid var(--workbench-muted); flex: none; }
.workbench-lens-kinds { display: flex; flex-wrap: wrap; gap: 3px 6px; }
.workbench-lens-kinds button {
  align-items: center; background: transparent; border: 1px solid transparent; border-radius: 3px; color: inherit;
  cursor: pointer; display: inline-flex; font: inherit; font-size: 12px; gap: 6px; padding: 1px 5px 1px 3px;
}
.workbench-lens-kinds button:hover, .workbench-lens-kinds button[aria-pressed="true"] { border-color: var(--workbench-muted); }
.workbench-lens-kinds button[aria-pressed="true"] { background: var(--workbench-grid); }
.workbench-lens-kinds i { box-sizing: border-box; height: 12px; width: 12px; }
.workbench-lens-list {
  border: 1px solid var(--workbench-grid); font: 11.5px/17px "DejaVu Sans Mono", Menlo, Consolas, monospace;
  list-style: none; margin: 4px 0 0; max-height: 320px; overflow: auto; padding: 2px 0;
}
.workbench-lens-panels button:focus-visible, .workbench-lens-panels summary:focus-visible,
.workbench-lens-list:focus-visible { outline: 2px solid var(--workbench-accent); outline-offset: 1px; }
.workbench-lens-list li { display: flex; gap: 8px; padding: 0 6px 0 0; white-space: pre; width: max-content; min-width: 100%; box-sizing: border-box; }
.workbench-lens-list i { box-sizing: border-box; flex: none; width: 6px; }
.workbench-lens-list small { color: var(--workbench-muted); margin-left: auto; padding-left: 12px; }
.workbench-lens-panels summary { color: var(--workbench-muted); cursor: pointer; font-size: 12px; }
.workbench-lens-panels details > div { margin-top: 6px; }
`;

const TENSOR = { width: 150, height: 84, line: 14 }; // largest drawing of a tensor, in CSS pixels
const LAYOUT = { width: 128, height: 84, cell: 12 };
const PALE = 0.35;
const MOST_INSTRUCTIONS = 500; // in a list: more would take too long to draw

// Return the color of a class of instructions, and whether it is filled: stores are hollow, loads are filled.
function kindColor(kind, colors) {
  const places = {
    "matrix": 1, "global load": 0, "global store": 0, "asynchronous copy": 4, "shared load": 2, "shared store": 2,
    "barrier": 3, "conversion": 5,
  };
  const color = kind in places ? colors.series[places[kind]] : colors.grid;
  return { color, isFilled: !kind.endsWith("store") };
}

function paint(element, { color, isFilled }) {
  element.style.border = `2px solid ${color}`;
  if (isFilled) element.style.background = color;
}

// Draw cells: `colorOf` maps a value to a color, `width` and `height` are a cell's size in CSS pixels.
function cellsPicture(cells, width, height, colorOf, label) {
  const [rows, columns] = cells.shape;
  const context = canvasOf(columns * width, rows * height, { role: "img", "aria-label": label });
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      context.fillStyle = colorOf(cells[row * columns + column]);
      context.fillRect(column * width, row * height, width, height);
    }
  }
  return context.canvas;
}

// Create the panel of the trace.
function tracePanel(scene, line, colors) {
  const items = scene.lineRows[line].map(number => {
    const row = scene.rows[number];
    const texts = row.facts.map(fact => html("div", {}, fact));
    const words = html("div", {}, html("strong", {}, row.title), ...texts);
    if (!row.cells) return html("div", { class: "workbench-lens-item" }, words);
    const [rows, columns] = row.cells.shape;
    const width = Math.max(Math.floor(TENSOR.width / columns), 1);
    const height = rows === 1 ? TENSOR.line : Math.max(Math.floor(TENSOR.height / rows), 1);
    const shades = [colors.grid, mix(colors.background, colors.series[0], 0.5), colors.series[0]];
    const picture = cellsPicture(row.cells, Math.min(width, 24), Math.min(height, 24), cell => shades[cell], row.caption);
    words.append(html("div", { class: "workbench-lens-small" }, row.caption));
    return html("div", { class: "workbench-lens-item" }, picture, words);
  });
  if (!items.length) items.push(html("div", { class: "workbench-lens-small" }, "Nothing that the trace counts."));
  const shades = legend([[colors.series[0], "its first access"], [mix(colors.background, colors.series[0], 0.5), "later ones"]]);
  const hasPicture = scene.lineRows[line].some(number => scene.rows[number].cells);
  return html("section", {}, html("h4", {}, "Trace"), ...items, ...(hasPicture ? [shades] : []));
}

function layoutItem(layout, operations, scene, theme) {
  const words = html(
    "div", {}, html("div", {}, layout.title), html("div", { class: "workbench-lens-small" }, operations),
    html("div", { class: "workbench-lens-small" }, layout.attribute),
  );
  const item = html("div", { class: "workbench-lens-item" }, words);
  if (layout.picture) {
    const { cells, colors, caption } = layout.picture;
    const [rows, columns] = cells.shape;
    const size = (most, number) => Math.max(Math.min(Math.floor(most / number), LAYOUT.cell), 1);
    const ramp = scene.colors[theme][colors];
    const label = `${layout.title}, colored by ${layout.picture.by}`;
    const picture = cellsPicture(cells, size(LAYOUT.width, columns), size(LAYOUT.height, rows), cell => ramp[cell], label);
    item.prepend(picture);
    if (caption) words.append(html("div", { class: "workbench-lens-small" }, caption));
  }
  return item;
}

function layoutsOf(target, line, scene, theme) {
  const all = target.lineLayouts[line].map(([place, operations]) => [target.layouts[place], operations]);
  if (!all.length) return [html("div", { class: "workbench-lens-small" }, "No tensor comes from this line.")];
  const shown = all.filter(([layout]) => !layout.index).map(([...each]) => layoutItem(...each, scene, theme));
  const others = all.filter(([layout]) => layout.index);
  if (others.length) {
    const inside = html("div");
    const fold = html("details", {}, html("summary", {}, count(others.length, "layout of indices and masks", "layouts of indices and masks")), inside);
    fold.addEventListener("toggle", () => {
      if (!inside.childElementCount) inside.append(...others.map(each => layoutItem(...each, scene, theme)));
    });
    shown.push(fold);
  }
  return shown;
}

// Count instructions by class and width; classes keep their order, the widest come first.
function classCounts(instructions) {
  const counts = new Map();
  for (const [, kind, bits] of instructions) {
    const key = `${kind}:${bits ?? 0}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].map(([key, number]) => [...key.split(":").map(Number), number])
    .sort(([kind, bits], [otherKind, otherBits]) => kind - otherKind || otherBits - bits);
}

function instructionItem([text, kind, bits], scene, colors) {
  const bar = html("i", { "aria-hidden": "true" });
  paint(bar, kindColor(scene.kinds[kind], colors));
  const label = scene.kinds[kind] === "other" ? "" : kindText(scene, kind, bits);
  return html("li", {}, bar, html("span", {}, text), html("small", {}, label));
}

function kindText(scene, kind, bits) {
  return `${scene.kinds[kind]}${bits ? ` ${bits}` : ""}`;
}

// Create a button for each class, which filters the list below by that class.
function instructionsOf(target, line, scene, colors) {
  const own = target.lineInstructions[line].map(number => target.instructions[number]);
  if (!own.length) return [html("div", { class: "workbench-lens-small" }, "No instruction comes from this line.")];
  const list = html("ol", { class: "workbench-lens-list", tabindex: 0, "aria-label": `instructions for ${target.name}` });
  const show = isShown => {
    const all = own.filter(isShown);
    const more = all.length > MOST_INSTRUCTIONS ? [html("li", {}, `… and ${all.length - MOST_INSTRUCTIONS} more`)] : [];
    list.replaceChildren(...all.slice(0, MOST_INSTRUCTIONS).map(each => instructionItem(each, scene, colors)), ...more);
  };
  const buttons = classCounts(own).map(([kind, bits, number]) => {
    const square = html("i", { "aria-hidden": "true" });
    paint(square, kindColor(scene.kinds[kind], colors));
    const button = html("button", { type: "button", "aria-pressed": "false" }, square, `${number} × ${kindText(scene, kind, bits)}`);
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "false";
      for (const other of buttons) other.setAttribute("aria-pressed", String(isOn && other === button));
      show(isOn ? each => each[1] === kind && (each[2] ?? 0) === bits : () => true);
    });
    return button;
  });
  show(() => true);
  list.addEventListener("keydown", event => event.stopPropagation()); // arrow keys scroll the list, not the notebook
  return [html("div", { class: "workbench-lens-kinds" }, ...buttons), list];
}

function targetPanel(target, line, scene, colors, theme) {
  const badges = target.notes.map(note => html("span", { class: "workbench-lens-badge" }, note));
  const number = target.lineInstructions[line].length;
  return html(
    "section", {}, html("h4", {}, target.name, ...badges), html("div", { class: "workbench-lens-small" }, target.summary),
    html("h5", {}, "layouts, colored by lane, in shared memory by bank"), ...layoutsOf(target, line, scene, theme),
    html("h5", {}, count(number, "instruction")), ...instructionsOf(target, line, scene, colors),
  );
}

// Return the function that a line belongs to, with its index and the line's index in it.
function functionAt(scene, line) {
  let first = 0;
  for (const [number, made] of scene.functions.entries()) {
    if (line < first + made.lines.length) return { number, at: line - first, made };
    first += made.lines.length;
  }
  return null;
}

// Return lines of other functions with the same accesses: this line calls them, or is called from them.
function calledLines(scene, line) {
  const found = new Set();
  const add = lists => {
    const own = new Set(lists[line]);
    lists.forEach((list, other) => { if (other !== line && list.some(each => own.has(each))) found.add(other); });
  };
  add(scene.lineRows);
  for (const target of scene.targets) add(target.lineInstructions);
  const own = functionAt(scene, line).number;
  return new Set([...found].filter(other => functionAt(scene, other).number !== own));
}

function showLens(model, el, signal) {
  const view = frame(model, el, signal, () => build());
  const name = `workbench-lens-${Math.random().toString(36).slice(2)}`;
  const status = statusLine();
  status.style.minHeight = "1.5em";
  const panels = html("div", { class: "workbench-lens-panels" });
  const folded = new Map(); // whether a function is folded, by its name
  let scene, tree, items, active;

  const colors = () => view.palette();
  const theme = () => (colors() === model.get("palettes").dark ? "dark" : "light");
  const isFolded = made => folded.get(made.name) ?? made !== scene.functions[0];

  // Create a number with a bar behind it, whose length is its share of the maximum.
  function cell(text, share, color) {
    const made = html("span", {}, share ? text : "");
    const end = `${Math.max(100 * share, 2)}%`;
    const pale = mix(colors().background, color, PALE);
    if (share) made.style.background = `linear-gradient(90deg, ${pale} ${end}, transparent ${end})`;
    return made;
  }

  function lineItem(line, number, text, mosts) {
    const [mostBytes, ...mostInstructions] = mosts;
    const bytes = scene.lineBytes[line];
    const cells = [cell(scene.lineBytesTexts[line], bytes / mostBytes, colors().series[0])];
    scene.targets.forEach((target, place) => {
      const own = target.lineInstructions[line].length;
      cells.push(cell(String(own), own / mostInstructions[place], colors().series[1]));
    });
    const item = html("div", { class: "workbench-lens-line", role: "treeitem", "aria-level": 2, id: `${name}-${line}` },
      html("span", {}, number), ...cells, html("span", {}, text));
    item.addEventListener("click", () => activate({ line: scene.firsts[line] }));
    return item;
  }

  function functionItem(made, place) {
    const item = html("div", { class: "workbench-lens-function", role: "treeitem", "aria-level": 1, id: `${name}-f${place}` });
    item.addEventListener("click", () => { fold(place, !isFolded(made)); activate({ place }); });
    return item;
  }

  function fold(place, isNowFolded) {
    folded.set(scene.functions[place].name, isNowFolded);
    showFolds();
  }

  function showFolds() {
    const called = calledLines(scene, selected());
    scene.functions.forEach((made, place) => {
      const { item, group } = items.functions[place];
      group.hidden = isFolded(made);
      item.setAttribute("aria-expanded", String(!isFolded(made)));
      const isCalled = [...called].some(line => functionAt(scene, line).number === place);
      const words = place === 0 ? "the kernel" : isCalled ? "part of what the selected line does" : "called by the kernel";
      item.replaceChildren(isFolded(made) ? "▸ " : "▾ ", html("b", {}, made.name), `, in ${made.file}: ${words}`);
    });
    items.lines.forEach((item, line) => item.classList.toggle("workbench-lens-called", called.has(line)));
  }

  // Return the first line of the selected statement.
  const selected = () => scene.firsts[Math.min(Math.max(model.get("step"), 0), items.lines.length - 1)];

  // Move the cursor to a line, which selects it, or to a function's name.
  function activate(place) {
    active = place;
    if (place.line !== undefined && place.line !== model.get("step")) put(model, "step", place.line);
    else showSelected();
  }

  function showSelected() {
    const line = selected();
    items.lines.forEach((item, other) => item.setAttribute("aria-selected", String(scene.firsts[other] === line)));
    items.functions.forEach(({ item }, place) => item.classList.toggle("workbench-lens-active", active.place === place));
    const { made, at, number } = functionAt(scene, line);
    if (isFolded(made) && active.place === undefined) folded.set(made.name, false);
    showFolds();
    const item = active.place === undefined ? items.lines[line] : items.functions[active.place].item;
    tree.setAttribute("aria-activedescendant", item.id);
    reveal(item);
    const instructions = scene.targets.map(target =>
      `${count(target.lineInstructions[line].length, "instruction")} for ${target.name}`);
    const bytes = scene.lineBytes[line] ? [scene.lineBytesTexts[line]] : [];
    status.textContent = `${made.name}, line ${made.line + at}: ${[...bytes, ...instructions].join(", ")}`;
    panels.dataset.targets = scene.targets.length;
    panels.replaceChildren(tracePanel(scene, line, colors()),
      ...scene.targets.map(target => targetPanel(target, line, scene, colors(), theme())));
  }

  // Scroll the text, never the page.
  function reveal(item) {
    const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
    const head = tree.querySelector(".workbench-lens-head").offsetHeight;
    if (top - head < tree.scrollTop) tree.scrollTop = top - head;
    else if (bottom > tree.scrollTop + tree.clientHeight) tree.scrollTop = bottom - tree.clientHeight;
  }

  // Return everything that the cursor can reach, in order: functions and statements.
  function stops() {
    let first = 0;
    return scene.functions.flatMap((made, place) => {
      const lines = isFolded(made) ? [] : made.lines.map((_, at) => ({ line: first + at }))
        .filter(({ line }) => scene.firsts[line] === line);
      first += made.lines.length;
      return [{ place }, ...lines];
    });
  }

  function move(event) {
    const all = stops();
    const now = all.findIndex(stop => stop.line === active.line && stop.place === active.place);
    const to = { ArrowUp: now - 1, ArrowDown: now + 1, Home: 0, End: all.length - 1, PageUp: now - 10, PageDown: now + 10 };
    if (event.key in to) {
      activate(all[Math.min(Math.max(to[event.key], 0), all.length - 1)]);
    } else if (active.place !== undefined && ["ArrowLeft", "ArrowRight", "Enter", " "].includes(event.key)) {
      const isNow = isFolded(scene.functions[active.place]);
      fold(active.place, event.key === "ArrowLeft" || (event.key !== "ArrowRight" && !isNow));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation(); // otherwise the notebook selects another cell
  }

  function build() {
    const hadFocus = tree !== undefined && tree.contains(view.root.getRootNode().activeElement);
    const scrolled = tree?.scrollTop ?? 0;
    scene = arrays(model.get("scene"));
    const most = numbers => Math.max(...numbers, 1);
    const mosts = [most(scene.lineBytes), ...scene.targets.map(target => most(target.lineInstructions.map(own => own.length)))];
    view.root.style.setProperty("--workbench-lens-columns", `40px 76px ${"58px ".repeat(scene.targets.length)} auto`);
    items = { lines: [], functions: [] };
    const head = html("div", { class: "workbench-lens-line workbench-lens-head", "aria-hidden": "true" },
      html("span", {}, "line"), html("span", {}, "bytes"), ...scene.targets.map(target => html("span", {}, target.name)),
      html("span", {}, scene.targets.length ? "← instructions" : ""));
    const lines = html("div", { class: "workbench-lens-lines" }, head);
    scene.functions.forEach((made, place) => {
      const group = html("div", { role: "group" });
      made.lines.forEach((text, at) => {
        const item = lineItem(items.lines.length, made.line + at, text, mosts);
        items.lines.push(item);
        group.append(item);
      });
      const item = functionItem(made, place);
      items.functions.push({ item, group });
      lines.append(item, group);
    });
    tree = html("div", {
      class: "workbench-lens-tree", role: "tree", tabindex: 0,
      "aria-label": `Text of ${scene.kernel}. Arrow keys select a line.`,
    }, lines);
    tree.addEventListener("keydown", move);
    if (active?.place === undefined) active = { line: selected() };
    view.root.replaceChildren(html("style", {}, LENS_STYLE), tree, status, html("div", { class: "workbench-lens-room" }, panels));
    showSelected();
    tree.scrollTop = scrolled;
    reveal(items.lines[selected()]);
    if (hadFocus) tree.focus();
  }

  build();
  listen(model, "change:scene", build, signal);
  listen(model, "change:step", () => {
    if (active.line !== selected()) active = { line: selected() };
    showSelected();
  }, signal);
}

export default rendering(showLens);

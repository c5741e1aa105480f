// Elements of a tile as cells, colored by lane or bank. The status line says where the element under the pointer
// or cursor is, and the other elements of its lane or bank are highlighted.

const NAMES = { left: 62, top: 4, bottom: 42 }; // margins in CSS pixels; the left one is a minimum
const LETTER = 7; // width of a digit, or of a comma with its space, in a row's name
const OUTLINED = 4, ROOMY = 20; // least size of a warp with an outline, and with a thick one
const LARGEST = { width: 56, height: 34, across: 800, down: 540 }; // largest cell, and largest grid
const FULL = { width: 46, height: 30 }; // the smallest cell for two lines of text
const LINED = 8; // the smallest cell with lines around it
const DIMMED = 0.75;

// Return the scene with functions of an element's row-major index.
function layoutOf(scene) {
  const [rows, shownRows] = scene.rows;
  const [columns, shownColumns] = scene.columns;
  const common = { ...scene, rows, columns, shownRows, shownColumns };
  if (scene.offsets) {
    const bank = element => (scene.offsets[element] >> 2) % scene.banks;
    return {
      ...common, kind: "bank", number: bank, detail: bank, warp: () => 0,
      isWith: element => { const own = bank(element); return other => bank(other) === own; },
      place: element => `byte ${scene.offsets[element]}, bank ${bank(element)}`,
    };
  }
  const { places, lanes, registers } = scene;
  const first = new Int32Array(rows * columns);
  for (let place = places.length - 1; place >= 0; place--) first[places[place]] = place;
  const copies = places.length / first.length;
  const thread = element => Math.floor(first[element] / registers);
  const warp = element => Math.floor(thread(element) / lanes);
  const lane = element => thread(element) % lanes;
  const register = element => first[element] % registers;
  return {
    ...common, kind: "lane", number: lane, detail: register, warp, isSplit: first.some((_, each) => warp(each) > 0),
    isWith: element => {
      const begin = thread(element) * registers;
      const held = new Set(places.subarray(begin, begin + registers));
      return other => held.has(other);
    },
    place: element => {
      const also = copies > 1 ? `, and ${count(copies - 1, "more place")}` : "";
      return `warp ${warp(element)}, lane ${lane(element)}, register ${register(element)}${also}`;
    },
  };
}

function indexText(element, shape) {
  const index = [];
  for (const length of [...shape].reverse()) {
    index.unshift(element % length);
    element = Math.floor(element / length);
  }
  return index.join(", ");
}

function rowName(row, layout) {
  const index = indexText(row * layout.columns, layout.shape);
  return layout.shape.length === 1 ? index : index.slice(0, index.lastIndexOf(","));
}

function elementText(layout, element) {
  return `Element (${indexText(element, layout.shape)}): ${layout.place(element)}.`;
}

// Return 0, step, 2 * step, ... where `step` is the least power of two that is at least `least`.
function every(total, least) {
  let step = 1;
  while (step < least) step *= 2;
  return Array.from({ length: Math.ceil(total / step) }, (_, number) => number * step);
}

// Return what fits in a cell: "" for nothing, "number", or "both" for lane and register.
function roomIn(cell, layout) {
  const isLane = layout.kind === "lane";
  const digits = String(isLane ? layout.registers - 1 : layout.banks - 1).length;
  if (cell.width < 7 * digits + 4 || cell.height < 12) return "";
  return isLane && cell.width >= FULL.width && cell.height >= FULL.height ? "both" : "number";
}

// Draw what does not depend on the pointer: cells, numbers, warps, names of rows and columns.
function drawCells(context, layout, cell, colors, theme) {
  const { shownRows, shownColumns, columns } = layout;
  const isLined = Math.min(cell.width, cell.height) >= LINED;
  const gap = isLined ? 1 : 0;
  const room = roomIn(cell, layout);
  context.save();
  context.translate(layout.left, NAMES.top);
  context.fillStyle = colors.background;
  context.fillRect(0, 0, shownColumns * cell.width, shownRows * cell.height);
  context.font = "11px 'DejaVu Sans', Verdana, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < shownRows; row++) {
    for (let column = 0; column < shownColumns; column++) {
      const element = row * columns + column;
      const number = layout.number(element);
      const [x, y] = [column * cell.width, row * cell.height];
      context.fillStyle = layout.colors[theme][number];
      context.fillRect(x, y, cell.width - gap, cell.height - gap);
      if (!room) continue;
      context.fillStyle = layout.texts[theme][number];
      const middle = [x + cell.width / 2, y + cell.height / 2];
      if (room === "both") {
        context.fillText(`L${number}`, middle[0], middle[1] - 6);
        context.fillText(`r${layout.detail(element)}`, middle[0], middle[1] + 7);
      } else {
        context.fillText(layout.detail(element), middle[0], middle[1]);
      }
    }
  }
  const width = warpRoom(layout, cell) < ROOMY ? 0.5 : isLined ? 2 : 1;
  drawWarps(context, layout, cell, colors, width, isOutlined(layout, cell));
  context.restore();
  drawNames(context, layout, cell, colors);
}

// Return the least distance between outlines of warps, in pixels.
function warpRoom(layout, cell) {
  const [columns, rows] = layout.narrowest;
  return Math.min(columns * cell.width, rows * cell.height);
}

// Return whether there are several warps and outlines would not hide the cells.
function isOutlined(layout, cell) {
  return Boolean(layout.isSplit) && warpRoom(layout, cell) >= OUTLINED;
}

// Draw a frame and lines around each warp's elements, light and dark so that they are visible on any color.
function drawWarps(context, layout, cell, colors, width, hasOutlines) {
  const { shownRows, shownColumns, columns } = layout;
  const path = new Path2D();
  path.rect(0, 0, shownColumns * cell.width, shownRows * cell.height);
  const differ = (one, other) => hasOutlines && layout.warp(one) !== layout.warp(other);
  for (let row = 0; row < shownRows; row++) {
    for (let column = 0; column < shownColumns; column++) {
      const element = row * columns + column;
      const [x, y] = [column * cell.width, row * cell.height];
      if (row > 0 && differ(element, element - columns)) {
        path.moveTo(x, y);
        path.lineTo(x + cell.width, y);
      }
      if (column > 0 && differ(element, element - 1)) {
        path.moveTo(x, y);
        path.lineTo(x, y + cell.height);
      }
    }
  }
  context.lineCap = "square";
  for (const [color, stroke] of [[colors.background, 2 * width], [colors.ink, width]]) {
    context.strokeStyle = color;
    context.lineWidth = stroke;
    context.stroke(path);
  }
}

function drawNames(context, layout, cell, colors) {
  const [across, along] = layout.axes;
  const bottom = NAMES.top + layout.shownRows * cell.height;
  context.fillStyle = colors.ink;
  context.font = "11px 'DejaVu Sans', Verdana, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const row of every(layout.shownRows, 14 / cell.height)) {
    context.fillText(rowName(row, layout), layout.left - 8, NAMES.top + (row + 0.5) * cell.height);
  }
  context.textAlign = "center";
  for (const column of every(layout.shownColumns, 28 / cell.width))
    context.fillText(column, layout.left + (column + 0.5) * cell.width, bottom + 11);
  context.textAlign = "left";
  context.fillStyle = colors.muted;
  context.fillText(`${across}, by ${along}`, layout.left, bottom + 30);
}

// Frame the element, and dim the cells of other lanes or banks.
function drawMarked(context, layout, cell, colors, element) {
  const { shownRows, shownColumns, columns } = layout;
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  if (element === null) return;
  context.save();
  context.translate(layout.left, NAMES.top);
  context.globalAlpha = DIMMED;
  context.fillStyle = colors.background;
  context.fillRect(0, 0, shownColumns * cell.width, shownRows * cell.height);
  context.globalAlpha = 1;
  const isWith = layout.isWith(element);
  for (let row = 0; row < shownRows; row++)
    for (let column = 0; column < shownColumns; column++)
      if (isWith(row * columns + column))
        context.clearRect(column * cell.width, row * cell.height, cell.width, cell.height);
  const [row, column] = [Math.floor(element / columns), element % columns];
  const line = Math.min(2.5, Math.min(cell.width, cell.height) / 3);
  for (const [color, width] of [[colors.background, 2 * line], [colors.ink, line]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(column * cell.width, row * cell.height, cell.width - 1, cell.height - 1);
  }
  context.restore();
}

// Create the legend of colors and lines.
function layoutLegend(layout, cell, theme) {
  const bar = html("i", { "aria-hidden": "true", style: "width: 180px" });
  bar.style.background = `linear-gradient(90deg, ${layout.colors[theme].join(", ")})`;
  const items = [html("span", {}, `${layout.kind} 0`, bar, String(layout.colors[theme].length - 1))];
  const numbers = { both: "L: lane, r: register", number: `number: ${layout.kind === "lane" ? "register" : "bank"}` };
  const texts = [isOutlined(layout, cell) ? "outlined: elements of one warp" : "", numbers[roomIn(cell, layout)] ?? ""];
  items.push(...texts.filter(Boolean).map(text => html("span", {}, text)));
  return html("div", { class: "workbench-legend" }, ...items);
}

function showLayout(model, el, signal) {
  const view = frame(model, el, signal, () => build());
  const status = statusLine();
  status.style.minHeight = "1.5em";
  let layout, cell, marks, marked, later;

  const colors = () => view.palette();
  const theme = () => (colors() === model.get("palettes").dark ? "dark" : "light");

  function mark(element) {
    if (element === marked) return;
    marked = element;
    drawMarked(marks, layout, cell, colors(), element);
    status.textContent = element === null ? hint() : elementText(layout, element);
  }

  function hint() {
    return "Point at an element, or use the arrow keys, to see where it is.";
  }

  // Python does not need every element that the pointer crosses.
  function tell(element, wait) {
    clearTimeout(later);
    later = setTimeout(() => put(model, "hovered", element === null ? {} : { element }), wait);
  }

  function at(event) {
    const [x, y] = [event.offsetX - layout.left, event.offsetY - NAMES.top];
    const [row, column] = [Math.floor(y / cell.height), Math.floor(x / cell.width)];
    const isInside = row >= 0 && row < layout.shownRows && column >= 0 && column < layout.shownColumns;
    return isInside ? row * layout.columns + column : null;
  }

  function move(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, 0] };
    if (event.key === "Escape") {
      mark(null);
      tell(null, 0);
    } else if (event.key in moves) {
      const [down, right] = moves[event.key];
      const isFirst = marked === null || event.key === "Home";
      const row = isFirst ? 0 : Math.floor(marked / layout.columns) + down;
      const column = isFirst ? 0 : (marked % layout.columns) + right;
      const clamp = (value, end) => Math.min(Math.max(value, 0), end - 1);
      const element = clamp(row, layout.shownRows) * layout.columns + clamp(column, layout.shownColumns);
      mark(element);
      tell(element, 100);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation(); // otherwise the notebook selects another cell
  }

  function build() {
    layout = layoutOf(arrays(model.get("scene")));
    const letters = rowName(layout.shownRows - 1, layout).replaceAll(" ", "").length;
    layout.left = Math.max(NAMES.left, letters * LETTER + 12);
    const room = Math.min(LARGEST.across, Math.max((el.clientWidth || 900) - layout.left - 40, 240));
    cell = {
      width: Math.max(Math.min(LARGEST.width, Math.floor(room / layout.shownColumns)), 2),
      height: Math.max(Math.min(LARGEST.height, Math.floor(LARGEST.down / layout.shownRows)), 2),
    };
    const width = layout.left + layout.shownColumns * cell.width + 20;
    const height = NAMES.top + layout.shownRows * cell.height + NAMES.bottom;
    const cells = canvasOf(Math.max(width, 420), height, { "aria-hidden": "true" });
    marks = canvasOf(Math.max(width, 420), height, {
      tabindex: 0, role: "application", "aria-label": `${layout.title}. Arrow keys move from element to element.`,
    });
    drawCells(cells, layout, cell, colors(), theme());
    marks.canvas.style.position = "absolute";
    marks.canvas.style.inset = "0 auto auto 0";
    marks.canvas.style.outlineOffset = "-2px"; // otherwise the box would clip it
    const box = html("div", { style: "position: relative; overflow-x: auto" }, cells.canvas, marks.canvas);
    marks.canvas.addEventListener("pointermove", event => { mark(at(event)); tell(marked, 150); });
    marks.canvas.addEventListener("pointerleave", () => { mark(null); tell(null, 150); });
    marks.canvas.addEventListener("keydown", move);
    const notes = layout.notes.map(text => html("div", { class: "workbench-note" }, text));
    const title = html("strong", {}, layout.title);
    view.root.replaceChildren(title, layoutLegend(layout, cell, theme()), box, status, ...notes);
    marked = undefined;
    follow();
  }

  // Show the element that Python says is hovered.
  function follow() {
    const { element } = model.get("hovered");
    mark(Number.isInteger(element) ? element : null);
  }

  build();
  listen(model, "change:scene", build, signal);
  listen(model, "change:hovered", follow, signal);
  signal.addEventListener("abort", () => clearTimeout(later));
}

export default rendering(showLayout);

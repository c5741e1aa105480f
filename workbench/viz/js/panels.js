// Tensors as grids of cells: panels drawn pixel by pixel, and the accesses to the cell under the pointer.

const LINED = 6; // the smallest cells with lines between them
const LEFT = 48, ABOVE = 18, EDGE = 3; // margins in CSS pixels: for numbers, and for the focused cell's box

// Call visit(row, column, active) for each lane of an access, with rows and columns of its panel.
function eachLane(scene, access, visit) {
  const { accesses, footprints } = scene;
  const number = accesses.footprint[access];
  if (number < 0) return;
  const panel = scene.panels[accesses.panel[access]];
  const row = accesses.row[access], column = accesses.column[access];
  const { rows, columns, active } = footprints;
  const wraps = footprints.wraps[number];
  for (let lane = footprints.starts[number]; lane < footprints.starts[number + 1]; lane++) {
    let r = rows[lane] + row, c = columns[lane] + column;
    if (wraps) {
      const place = c - panel.first;
      r = Math.floor(place / panel.columns);
      c = place - r * panel.columns;
    }
    r -= panel.top;
    c -= panel.left;
    if (r >= 0 && r < panel.height && c >= 0 && c < panel.width) visit(r, c, active[lane]);
  }
}

// Return the bounding box of each footprint, which rules out most footprints when searching for an element.
function boundsOf(footprints) {
  return Array.from(footprints.wraps, (_, number) => {
    const bounds = [Infinity, -Infinity, Infinity, -Infinity];
    for (let lane = footprints.starts[number]; lane < footprints.starts[number + 1]; lane++) {
      if (!footprints.active[lane]) continue;
      bounds[0] = Math.min(bounds[0], footprints.rows[lane]);
      bounds[1] = Math.max(bounds[1], footprints.rows[lane]);
      bounds[2] = Math.min(bounds[2], footprints.columns[lane]);
      bounds[3] = Math.max(bounds[3], footprints.columns[lane]);
    }
    return bounds;
  });
}

// Return how many lanes of a footprint touch a cell, given relative to the anchor as in `Footprint`: row and
// column, or for a footprint that wraps 0 and the position in reading order.
function lanesOn(footprints, bounds, number, row, column) {
  const [top, bottom, left, right] = bounds[number];
  if (row < top || row > bottom || column < left || column > right) return 0;
  const { starts, rows, columns, active } = footprints;
  let lanes = 0;
  for (let lane = starts[number]; lane < starts[number + 1]; lane++)
    if (rows[lane] === row && columns[lane] === column && active[lane]) lanes++;
  return lanes;
}

// Return [access, lanes] of each access (of a kind) to a cell of a panel, in order, as `Accesses.touching`.
function touching(scene, number, row, column, kind = null) {
  const { accesses, footprints } = scene;
  scene.bounds ??= boundsOf(footprints);
  const panel = scene.panels[number];
  const place = row * panel.columns + column + panel.first;
  const known = new Map();
  const found = [];
  for (let access = 0; access < accesses.panel.length; access++) {
    const footprint = accesses.footprint[access];
    if (accesses.panel[access] !== number || footprint < 0) continue;
    if (kind && scene.sites[accesses.site[access]].kind !== kind) continue;
    const key = `${footprint},${accesses.row[access]},${accesses.column[access]}`;
    if (!known.has(key)) {
      const [r, c] = footprints.wraps[footprint] ? [0, place] : [row, column];
      known.set(key, lanesOn(
        footprints, scene.bounds, footprint, r - accesses.row[access], c - accesses.column[access],
      ));
    }
    if (known.get(key)) found.push([access, known.get(key)]);
  }
  return found;
}

// Return the index along the drawn axes that a cell shows, or null, as `Panel.index`.
function indexOf(panel, row, column) {
  if (panel.line) {
    const place = row * panel.width + column + panel.first;
    return place >= 0 && place < panel.elements ? [place].slice(0, panel.lengths.length) : null;
  }
  if (row < 0 || row >= panel.rows || column < 0 || column >= panel.columns) return null;
  const index = [column];
  for (let axis = panel.lengths.length - 2; axis >= 0; axis--) {
    index.unshift(row % panel.lengths[axis]);
    row = Math.floor(row / panel.lengths[axis]);
  }
  return index;
}

// Return the name of what a cell shows, as `Panel.name`.
function nameOf(panel, row, column) {
  const index = indexOf(panel, row, column);
  if (index === null) return `outside ${panel.name}`;
  if (index.length !== panel.shape.length) return `${panel.name}, element ${index[0]} of its memory`;
  const places = index.map((place, axis) => (panel.shape[axis] === panel.lengths[axis] ? place : ":"));
  return places.length ? `${panel.name}[${places.join(", ")}]` : panel.name;
}

// Return ", line N" for a site, or "" if its line is unknown.
function atLine({ line }) {
  return line === null ? "" : `, line ${line}`;
}

// Describe who touches a cell (in one way) and when, line by line, as `Accesses.tell_cell`.
function tellCell(scene, number, row, column, kind = null) {
  const name = nameOf(scene.panels[number], row, column);
  const found = touching(scene, number, row, column, kind);
  if (!found.length) return [`${name}: not touched.`];
  const { position, site, starts } = scene.accesses;
  const groups = new Map();
  for (const [access] of found) {
    const who = `${scene.programs[position[access]]} at access ${access - starts[position[access]] + 1}`;
    if (!groups.has(site[access])) groups.set(site[access], []);
    groups.get(site[access]).push(who);
  }
  const lines = [...groups].map(([place, who]) => {
    const more = who.length > 6 ? ` and ${who.length - 6} more` : "";
    return `${scene.sites[place].kind}${atLine(scene.sites[place])}: program ${who.slice(0, 6).join(", ")}${more}.`;
  });
  const times = found.reduce((total, [, lanes]) => total + lanes, 0);
  return [`${name}: touched ${times === 1 ? "once" : `${times} times`}.`, ...lines];
}

// Create a panel: a figure with a canvas. `pointed(row, column)` is called when the pointer or an arrow key moves to
// another cell, pointed(null) when it leaves. Returns {figure, pixels, paint(colors, hatched, palette), mark(cell)}:
// `pixels` is a Uint8Array with a code for each pixel of the image, which `paint` draws with colors[code].
function panelOf(panel, pointed) {
  const { rows, columns, height, width } = panel.scale;
  const down = Math.ceil(panel.height / rows), across = Math.ceil(panel.width / columns);
  const context = canvasOf(LEFT + across * width + EDGE, ABOVE + down * height + EDGE, {
    tabindex: 0,
    role: "application",
    "aria-label": `${panel.name}, ${panel.dtype}, ${panel.shape.join(" × ")}: arrow keys move from element to element`,
  });
  const image = new ImageData(across, down);
  const words = new Uint32Array(image.data.buffer);
  const small = html("canvas", { width: across, height: down });
  const pixels = new Uint8Array(across * down);
  const shape = panel.shape.length ? panel.shape.join(" × ") : "one number";
  const figure = html(
    "figure", {},
    html("figcaption", {}, html("b", {}, panel.name), " ",
      html("small", {}, [`${panel.dtype}, ${shape}`, panel.note].filter(Boolean).join("; "))),
    context.canvas,
  );
  let cell = null, painted = null;

  function paint(colors, hatched, palette) {
    painted = [colors, hatched, palette];
    for (let at = 0; at < pixels.length; at++) words[at] = colors[pixels[at]];
    small.getContext("2d").putImageData(image, 0, 0);
    const { canvas } = context;
    context.fillStyle = palette.background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.translate(LEFT, ABOVE);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, across * width, down * height);
    if (Math.min(width, height) >= LINED) lines(hatched, palette);
    if (!panel.line) frameTensor(palette);
    numbers(palette);
    if (cell) {
      outline(cell.row - panel.top, cell.column - panel.left, 1, 1, palette.background, 5);
      outline(cell.row - panel.top, cell.column - panel.left, 1, 1, palette.ink, 2);
    }
    context.restore();
  }

  function lines(hatched, palette) {
    context.strokeStyle = palette.background;
    context.lineWidth = 1;
    context.beginPath();
    for (let row = 1; row < down; row++) {
      context.moveTo(0, row * height);
      context.lineTo(across * width, row * height);
    }
    for (let column = 1; column < across; column++) {
      context.moveTo(column * width, 0);
      context.lineTo(column * width, down * height);
    }
    for (let at = 0; at < pixels.length; at++) {
      if (pixels[at] !== hatched) continue;
      const x = (at % across) * width, y = Math.floor(at / across) * height;
      context.moveTo(x + width * 0.15, y + height * 0.85);
      context.lineTo(x + width * 0.85, y + height * 0.15);
    }
    context.stroke();
  }

  // The tensor's outline, around its cells because they may be only a pixel high.
  function frameTensor(palette) {
    const [top, left] = [Math.floor(-panel.top / rows), Math.floor(-panel.left / columns)];
    const bottom = Math.ceil((panel.rows - panel.top) / rows), right = Math.ceil((panel.columns - panel.left) / columns);
    context.strokeStyle = palette.ink;
    context.lineWidth = 1.2;
    context.strokeRect(left * width - 1, top * height - 1, (right - left) * width + 2, (bottom - top) * height + 2);
  }

  // Draw a rectangle around cells, counted from the first drawn one.
  function outline(row, column, high, wide, color, thick) {
    context.strokeStyle = color;
    context.lineWidth = thick;
    const x = column / columns * width, y = row / rows * height;
    context.strokeRect(x, y, Math.max(wide / columns * width, 2), Math.max(high / rows * height, 2));
  }

  function numbers(palette) {
    context.fillStyle = palette.muted;
    context.font = '10.5px "DejaVu Sans", Verdana, sans-serif';
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [row, number] of panel.rowTicks) context.fillText(number, -5, (row + 0.5) / rows * height);
    context.textAlign = "center";
    context.textBaseline = "bottom";
    for (const [column, number] of panel.columnTicks)
      context.fillText(number, (column + 0.5) / columns * width, -3);
  }

  function under(event) {
    const box = context.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - ABOVE) / height) * rows;
    const column = Math.floor((event.clientX - box.left - LEFT) / width) * columns;
    const inside = row >= 0 && row < panel.height && column >= 0 && column < panel.width;
    return inside ? { row: row + panel.top, column: column + panel.left } : null;
  }

  function mark(next) {
    cell = next;
    if (painted) paint(...painted);
  }

  function go(next) {
    if (next?.row === cell?.row && next?.column === cell?.column) return;
    pointed(next);
  }

  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  context.canvas.addEventListener("pointermove", event => go(under(event)));
  context.canvas.addEventListener("pointerleave", () => go(null));
  context.canvas.addEventListener("keydown", event => {
    const move = MOVES[event.key];
    if (!move && event.key !== "Escape") return;
    event.preventDefault(); // otherwise the page scrolls
    if (!move) return go(null);
    const from = cell ?? { row: Math.max(panel.top, 0) - move[0], column: Math.max(panel.left, 0) - move[1] };
    const row = Math.min(Math.max(from.row + move[0], panel.top), panel.top + panel.height - 1);
    const column = Math.min(Math.max(from.column + move[1], panel.left), panel.left + panel.width - 1);
    go({ row, column });
  });
  return { figure, pixels, paint, mark };
}

// Return the index of the pixel that shows a cell, counted from the first drawn one.
function pixelAt(panel, row, column) {
  const { rows, columns } = panel.scale;
  return Math.floor(row / rows) * Math.ceil(panel.width / columns) + Math.floor(column / columns);
}

// Create all panels of a scene that have elements, in a row that wraps. Returns {row, panels}, `panels` by index;
// the cell under the pointer is set as the model's `hovered`, {panel, row, column}.
function panelsOf(scene, model) {
  const panels = scene.panels.map((panel, number) =>
    panel.elements
      ? panelOf(panel, cell => put(model, "hovered", cell ? { panel: number, ...cell } : {}))
      : null);
  const row = html("div", { class: "workbench-panels" }, ...panels.filter(Boolean).map(one => one.figure));
  return { row, panels };
}

// Mark the hovered cell, and no other, in all panels.
function markHovered(panels, hovered) {
  panels.forEach((panel, number) => panel?.mark(hovered.panel === number ? hovered : null));
}

// Create the title: the kernel's name and its programs.
function titleOf(scene) {
  const grid = scene.grid.slice(0, Math.max(1, 3 - [...scene.grid].reverse().findIndex(length => length > 1)));
  const programs = scene.grid.reduce((product, length) => product * length, 1);
  const shape = scene.grid.filter(length => length > 1).length > 1 ? `, grid ${grid.join(" × ")}` : "";
  return html(
    "div", { class: "workbench-title" },
    html("b", {}, scene.kernel), " ", html("small", {}, count(programs, "program") + shape),
  );
}

// Map of what each program touches, step by step. A step shows all accesses of a program, or one of them.

// States of cells, as in trace_maps.py; higher ones take precedence. The last three get the bits of a kind.
const UNTOUCHED = 1, BEFORE = 8, EARLIER = 16, NOW = 24;
const MASKED = EARLIER;
const BITS = { load: 1, store: 2, atomic: 4 };
const PROGRAM_PERIOD = 250, ACCESS_PERIOD = 500; // milliseconds, while playing

// Return for each panel and kind the index of the first program that touches each pixel.
function firstsOf(scene, panels) {
  const { accesses } = scene;
  const firsts = panels.map(panel => panel && Object.values(BITS).map(bit =>
    ({ bit, position: new Int32Array(panel.pixels.length).fill(0x7fffffff) })));
  const seen = new Set();
  for (let access = 0; access < accesses.panel.length; access++) {
    const number = accesses.panel[access], bit = BITS[scene.sites[accesses.site[access]].kind];
    const key = `${accesses.footprint[access]},${accesses.row[access]},${accesses.column[access]},${bit}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const panel = scene.panels[number];
    const { position } = firsts[number].find(one => one.bit === bit);
    eachLane(scene, access, (row, column, active) => {
      const at = pixelAt(panel, row, column);
      if (active && position[at] > accesses.position[access]) position[at] = accesses.position[access];
    });
  }
  return firsts;
}

// Return the code of each pixel before any program ran.
function blank(panel) {
  const codes = new Uint8Array(Math.ceil(panel.width / panel.scale.columns) * Math.ceil(panel.height / panel.scale.rows));
  for (let row = 0; row < panel.height; row += panel.scale.rows)
    for (let column = 0; column < panel.width; column += panel.scale.columns)
      if (indexOf(panel, row + panel.top, column + panel.left) !== null)
        codes[pixelAt(panel, row, column)] = UNTOUCHED;
  return codes;
}

// Return {position, access} of a step: the program's index, and 0 for all its accesses or the number of one.
function shownAt(scene, step) {
  const { starts } = scene.accesses;
  let low = 0, high = starts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] + middle <= step) low = middle; else high = middle - 1;
  }
  return { position: low, access: step - starts[low] - low };
}

function stepOf(scene, position, access) {
  return scene.accesses.starts[position] + position + access;
}

function lanes(active, all) {
  return `${active} of ${count(all, "lane")} active${active < all ? `, ${all - active} masked off` : ""}`;
}

// Describe what a program or one of its accesses does, as `_tell` of trace_maps.py.
function tellStep(scene, { position, access }) {
  const { starts, site, active, lanes: all } = scene.accesses;
  const first = starts[position], end = starts[position + 1];
  const program = `Program ${scene.programs[position]}`;
  if (first === end) return `${program}: no access to memory.`;
  if (access === 0) {
    const kinds = new Map();
    for (let number = first; number < end; number++) {
      const { kind } = scene.sites[site[number]];
      kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    }
    const what = [...kinds].map(([kind, times]) => count(times, kind)).join(", ");
    const sum = values => values.subarray(first, end).reduce((total, value) => total + value, 0);
    return `${program}: ${what}; ${lanes(sum(active), sum(all))}.`;
  }
  const number = first + access - 1;
  const { kind, shape, argument } = scene.sites[site[number]];
  const what = `${kind}, ${shape.join(" × ") || "1"} of ${argument}${atLine(scene.sites[site[number]])}`;
  return `${program}, access ${access} of ${end - first}: ${what}; ${lanes(active[number], all[number])}.`;
}

// Return a program's number, with its position if the grid has several axes.
function placeOf(scene, position) {
  const number = scene.programs[position], [width, height] = scene.grid;
  const axes = scene.grid.reduce((last, programs, axis) => (programs > 1 ? axis + 1 : last), 1);
  const index = [number % width, Math.floor(number / width) % height, Math.floor(number / (width * height))];
  return axes > 1 ? `${number} at (${index.slice(0, axes).join(", ")})` : `${number}`;
}

function show(model, el, signal) {
  let scene, panels, blanks, firsts, controls;
  const view = frame(model, el, signal, () => build());
  const status = statusLine();

  function build() {
    scene = arrays(model.get("scene"));
    const made = panelsOf(scene, model);
    panels = made.panels;
    blanks = scene.panels.map(blank);
    firsts = firstsOf(scene, panels);
    controls = {
      program: stepper({
        label: "program", title: "program by program", period: PROGRAM_PERIOD, signal,
        moved: position => go(position, 0),
      }),
      access: stepper({
        label: "access", title: "the accesses of this program", period: ACCESS_PERIOD, signal,
        moved: access => go(shownAt(scene, model.get("step")).position, access),
      }),
    };
    const colors = scene.colors[view.theme()];
    const entries = scene.legend.map(([code, text]) => [swatch(code, colors[code]), text]);
    view.root.replaceChildren(
      titleOf(scene), controls.program.row, controls.access.row, legend(entries), made.row,
      html("p", { class: "workbench-note" }, scene.note), status,
    );
    update();
  }

  function swatch(code, color) {
    const { background } = view.palette();
    return code === MASKED
      ? `repeating-linear-gradient(-45deg, ${color} 0 3px, ${background} 3px 4px)`
      : color;
  }

  function go(position, access) {
    put(model, "step", stepOf(scene, position, access));
  }

  function update() {
    const shown = shownAt(scene, model.get("step"));
    const { starts } = scene.accesses;
    const own = starts[shown.position + 1] - starts[shown.position];
    controls.program.set(shown.position, scene.programs.length - 1, placeOf(scene, shown.position));
    controls.access.set(shown.access, own, shown.access ? `${shown.access} of ${own}` : `all ${own}`);
    const words = Uint32Array.from(scene.colors[view.theme()], pixel);
    panels.forEach((panel, number) => {
      if (!panel) return;
      code(number, shown);
      panel.paint(words, MASKED, view.palette());
    });
    hover();
  }

  // Return the codes of a panel's pixels, as `_codes` of trace_maps.py.
  function code(number, { position, access }) {
    const { pixels } = panels[number], panel = scene.panels[number];
    const { starts, panel: where, site } = scene.accesses;
    pixels.set(blanks[number]);
    for (const { bit, position: first } of firsts[number])
      for (let at = 0; at < pixels.length; at++)
        if (first[at] < position) pixels[at] = (pixels[at] > BEFORE ? pixels[at] : BEFORE) | bit;
    const begin = access ? starts[position] + access - 1 : starts[position];
    const end = access ? begin + 1 : starts[position + 1];
    const each = (from, to, visit) => {
      for (let one = from; one < to; one++)
        if (where[one] === number) {
          const bit = BITS[scene.sites[site[one]].kind];
          eachLane(scene, one, (row, column, active) => visit(pixelAt(panel, row, column), active, bit));
        }
    };
    const mark = level => (at, active, bit) => {
      if (active) pixels[at] = (pixels[at] > level ? pixels[at] : level) | bit;
    };
    each(begin, end, (at, active) => {
      if (!active) pixels[at] = MASKED;
    });
    each(starts[position], begin, mark(EARLIER));
    each(begin, end, mark(NOW));
  }

  function hover() {
    const cell = model.get("hovered");
    const told = "panel" in cell ? tellCell(scene, cell.panel, cell.row, cell.column) : [];
    const lines = [tellStep(scene, shownAt(scene, model.get("step"))), ...told];
    status.replaceChildren(...lines.map(line => html("div", {}, line)));
    markHovered(panels, cell);
  }

  build();
  listen(model, "change:scene", build, signal);
  listen(model, "change:step", update, signal);
  listen(model, "change:hovered", hover, signal);
}

export default rendering(show);

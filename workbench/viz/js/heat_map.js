// Heat map of how often each element of one tensor is touched, as counted by Python.

function show(model, el, signal) {
  let scene, panels, number;
  const view = frame(model, el, signal, () => build());
  const status = statusLine();

  function build() {
    scene = arrays(model.get("scene"));
    number = scene.number;
    const shown = scene.panels.map((panel, at) => (at === number ? panel : { ...panel, elements: 0 }));
    const made = panelsOf({ ...scene, panels: shown }, model);
    panels = made.panels;
    panels[number].pixels.set(scene.image);
    const colors = scene.colors[view.theme()];
    panels[number].paint(Uint32Array.from(colors, pixel), -1, view.palette());
    view.root.replaceChildren(
      titleOf(scene), legend(scene.legend.map(([code, words]) => [colors[code], words])), made.row,
      html("p", { class: "workbench-note" }, scene.note), status,
    );
    hover();
  }

  function hover() {
    const cell = model.get("hovered");
    const told = "panel" in cell ? tellCell(scene, number, cell.row, cell.column, scene.kind) : [];
    status.replaceChildren(...[scene.summary, ...told].map(line => html("div", {}, line)));
    markHovered(panels, cell);
  }

  build();
  listen(model, "change:scene", build, signal);
  listen(model, "change:hovered", hover, signal);
}

export default rendering(show);

// The second tab: one query, five keys and their values, in two dimensions, to drag about or to
// type. With d features the two are repeated d / 2 times, so that q·k grows with d, as it does in
// a model.
"use strict";
{
  const SEES = { causal: [0, 3], window: [2, 3], everything: [0, 4] }; // keys, from and to
  const REACH = 2.3; // how far something can be dragged
  const named = (letter, points) => points.map((at, n) => ({ name: `${letter}${n + 1}`, at }));
  const query = { name: "q", at: [1.0, 0.3] };
  const keys = named("k", [[-1.1, 1.3], [1.5, 1.4], [0.3, -1.5], [1.7, -0.3], [-1.6, -0.7]]);
  const values = named("v", [[-1.7, 0.5], [0.6, 1.8], [-0.5, -1.7], [1.9, 0.1], [-1.2, -1.3]]);

  // ---- The maths of attention.py, for one query
  function attend() {
    const d = Number($("#size").value), temperature = Number($("#temperature").value);
    const divisor = ($("#root").checked ? Math.sqrt(d) : 1) * temperature;
    const products = keys.map(({ at }) => (d / 2) * dot(query.at, at));
    const [first, last] = SEES[$("#mask").value];
    const scores = products.map((product, j) =>
      (first <= j && j <= last ? product / divisor : -Infinity));
    const weights = softmax(scores);
    const output = [0, 1].map((x) => sum(weights.map((weight, j) => weight * values[j].at[x])));
    return { products, scores, weights, output };
  }

  // ---- Two planes
  function plane(svg, things) {
    for (const thing of things) {
      thing.disc = make("circle", { r: 0.27, class: thing === query ? "query" : "fill" });
      thing.handle = svg.appendChild(make("g", { id: `drag-${thing.name}` },
        make("circle", { r: 0.27, class: "ring" }), thing.disc,
        make("text", { dy: thing === query ? 0 : 0.42 }, thing.name)));
      draggable(svg, thing);
    }
  }

  function move(thing, at) {
    const within = (value) => Math.min(REACH, Math.max(-REACH, value));
    thing.at = at.map((value) => Math.round(100 * within(value)) / 100);
    paint();
  }

  function draggable(svg, thing) {
    const { handle } = thing;
    // A finger on it drags it, and beside it scrolls. (touch-action has no effect within an SVG.)
    handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const { left, top, width } = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      move(thing, [(5 * x) / width - 2.5, 2.5 - (5 * y) / width]);
    });
  }

  // ---- In numbers
  // Two fields for the two numbers of a thing.
  function typed(thing) {
    thing.fields = ["x", "y"].map((axis, n) => {
      const field = make("input", {
        type: "number", min: -REACH, max: REACH, step: 0.1,
        id: `type-${thing.name}-${axis}`, "aria-label": `${thing.name}, ${axis}`,
      });
      field.addEventListener("change", () => {
        move(thing, thing.at.with(n, field.value === "" ? thing.at[n] : Number(field.value)));
      });
      return field;
    });
    return make("span", { class: "pair" }, thing.name, ...thing.fields);
  }

  $("#type-q").append(typed(query));
  const rows = keys.map((key, j) => {
    const cells = [typed(key), typed(values[j]), "", "", "", make("span", { class: "bar" })];
    const row = make("tr", {}, ...cells.map((content) => make("td", {}, content)));
    $("#numbers tbody").append(row);
    return row;
  });

  function paintRow(row, seen, product, score, weight) {
    const texts = [digits(product), seen ? digits(score) : "hidden", seen ? digits(weight) : "–"];
    texts.forEach((text, n) => { row.cells[2 + n].textContent = text; });
    row.cells[5].firstChild.style.setProperty("--p", weight);
    row.dataset.weight = weight.toFixed(6);
    row.classList.toggle("unseen", !seen);
  }

  function paint() {
    const { products, scores, weights, output: [x, y] } = attend();
    for (const { at, handle, fields } of [query, ...keys, ...values]) {
      handle.setAttribute("transform", `translate(${at[0]} ${-at[1]})`);
      [handle.dataset.x, handle.dataset.y] = at;
      fields.forEach((field, n) => { field.value = at[n]; });
    }
    weights.forEach((weight, j) => {
      const seen = scores[j] > -Infinity;
      for (const { disc, handle } of [keys[j], values[j]]) {
        disc.setAttribute("r", 0.27 * Math.sqrt(weight)); // the area is the weight
        handle.classList.toggle("unseen", !seen);
      }
      paintRow(rows[j], seen, products[j], scores[j], weight);
    });
    for (const [arrow, [x2, y2]] of [["#asks", query.at], ["#answer", [x, y]]])
      for (const [name, value] of [["x2", x2], ["y2", -y2]]) $(arrow).setAttribute(name, value);
    const end = $("#output");
    end.setAttribute("transform", `translate(${x} ${-y})`);
    [end.dataset.x, end.dataset.y] = [x.toFixed(6), y.toFixed(6)];
    $("#temperature-value").textContent = Number($("#temperature").value).toFixed(1);
    $("#mask-says").textContent = $("#mask").selectedOptions[0].dataset.says;
    $("#output-says").textContent = `(${digits(x)}, ${digits(y)})`;
  }

  plane($("#keys"), [...keys, query]);
  plane($("#values"), values);
  $("#values").append($("#output")); // above the values
  for (const id of ["#size", "#root", "#temperature", "#mask"])
    $(id).addEventListener("input", paint);
  paint();
}

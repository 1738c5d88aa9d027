// The second tab: one query, one to five keys and their values, in two dimensions, to drag about,
// to type, or to take from a head of the model. Their scores are divided by √d_k, a number to
// choose. That q·k grows with d by itself is measured below, of vectors drawn at random.
"use strict";
const playground = (() => {
  // Of a query at position p of n: the first key that it sees, and the last.
  const SEES = { causal: (p) => [1, p], window: (p) => [p - 1, p], everything: (p, n) => [1, n] };
  const EDGE = 2.3; // of a plane, from its middle
  const START = {
    d: 2, mask: "causal", q: [1.0, 0.3],
    k: [[-1.1, 1.3], [1.5, 1.4], [0.3, -1.5], [1.7, -0.3], [-1.6, -0.7]],
    v: [[-1.7, 0.5], [0.6, 1.8], [-0.5, -1.7], [1.9, 0.1], [-1.2, -1.3]],
  };
  const named = (letter) => START.k.map((at, n) => ({ name: `${letter}${n + 1}`, at }));
  const query = { name: "q" }, keys = named("k"), values = named("v");
  let reach; // the number at the edge

  // ---- The maths of attention.py, for one query
  function attend() {
    const [count, size, temperature] =
      ["#count", "#size", "#temperature"].map((id) => Number($(id).value));
    const position = Math.min(4, count), [first, last] = SEES[$("#mask").value](position, count);
    const products = keys.slice(0, count).map(({ at }) => dot(query.at, at));
    const divisor = Math.sqrt(size) * temperature, sees = (n) => first <= n + 1 && n < last;
    const scores = products.map((product, n) => (sees(n) ? product / divisor : -Infinity));
    const weights = softmax(scores);
    const output = [0, 1].map((x) => sum(weights.map((weight, j) => weight * values[j].at[x])));
    const said = {
      count, size, temperature: temperature.toFixed(1), divisor: digits(divisor), position,
      first: Math.max(1, first), last, output: output.map(digits).join(", "),
    };
    return { products, scores, weights, output, said };
  }

  // ---- Two planes
  function plane(svg, things) {
    for (const thing of things) {
      thing.disc = make("circle", { r: 0.27, class: thing === query ? "query" : "fill" });
      thing.label = make("text", { dy: thing === query ? 0 : 0.42 });
      thing.handle = svg.appendChild(make("g", { id: `drag-${thing.name}` },
        make("circle", { r: 0.27, class: "ring" }), thing.disc, thing.label));
      draggable(svg, thing);
    }
  }

  function move(thing, at) {
    thing.at = at.map((x) => Math.round(100 * Math.min(reach, Math.max(-reach, x))) / 100);
    paint();
  }

  function draggable(svg, thing) {
    const { handle } = thing;
    // A finger on it drags it, and beside it scrolls. (touch-action has no effect within an SVG.)
    handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const { left, top, width } = svg.getBoundingClientRect(), unit = (5 / width) * (reach / EDGE);
      const [x, y] = [event.clientX - left, event.clientY - top];
      move(thing, [unit * (x - width / 2), unit * (width / 2 - y)]);
    });
  }

  // ---- In numbers
  // Two fields for the two numbers of a thing.
  function typed(thing) {
    thing.fields = ["x", "y"].map((axis, n) => {
      const [id, title] = [`type-${thing.name}-${axis}`, `${thing.name}, ${axis}`];
      const field = make("input", { type: "number", step: 0.1, id, title });
      field.addEventListener("change", () => {
        move(thing, thing.at.with(n, field.value === "" ? thing.at[n] : Number(field.value)));
      });
      return field;
    });
    return make("span", { class: "pair" }, ...thing.fields);
  }

  $("#type-q").append(typed(query));
  const rows = keys.map((key, j) => {
    const cells = ["", typed(key), typed(values[j]), "", "", "", make("span", { class: "bar" })];
    const row = make("tr", {}, ...cells.map((content) => make("td", {}, content)));
    $("#numbers tbody").append(row);
    return row;
  });

  function paintRow(row, { label }, product, score, weight) {
    const seen = score > -Infinity, [name, , , ...cells] = row.cells;
    const texts = seen ? [product, score, weight].map(digits) : [digits(product), "hidden", "–"];
    name.textContent = label.textContent;
    texts.forEach((text, n) => { cells[n].textContent = text; });
    row.cells[6].firstChild.style.setProperty("--p", weight);
    row.dataset.weight = weight.toFixed(6);
    row.classList.toggle("unseen", !seen);
  }

  const onPlane = ([x, y]) => [(x * EDGE) / reach, (-y * EDGE) / reach];

  function paintThing({ name, says, at, handle, label, fields, disc }, weight, seen) {
    handle.setAttribute("transform", `translate(${onPlane(at)})`);
    [handle.dataset.x, handle.dataset.y] = at;
    label.textContent = says ?? name;
    fields.forEach((field, n) => { field.value = Math.round(100 * at[n]) / 100; });
    disc.setAttribute("r", 0.27 * Math.sqrt(weight ?? 0)); // the area is the weight
    handle.classList.toggle("unseen", !seen);
    handle.classList.toggle("removed", weight === undefined);
  }

  function paint() {
    const { products, scores, weights, output, said } = attend(), end = $("#output");
    paintThing(query, 1, true);
    rows.forEach((row, j) => {
      const things = [keys[j], values[j]];
      for (const thing of things) paintThing(thing, weights[j], scores[j] > -Infinity);
      row.hidden = j >= weights.length;
      if (!row.hidden) paintRow(row, keys[j], products[j], scores[j], weights[j]);
    });
    for (const [arrow, at] of [["#asks", query.at], ["#answer", output]])
      onPlane(at).forEach((value, n) => $(arrow).setAttribute(["x2", "y2"][n], value));
    end.setAttribute("transform", `translate(${onPlane(output)})`);
    [end.dataset.x, end.dataset.y] = output.map((value) => value.toFixed(6));
    for (const place of $$("#playground [data-is]")) place.textContent = said[place.dataset.is];
  }

  // ---- Which vectors
  function lay({ d, mask, q, k, v, labels }) {
    query.at = q;
    for (const [things, vectors] of [[keys, k], [values, v]])
      vectors.forEach((at, n) => Object.assign(things[n], { at, says: labels?.[n] }));
    reach = Math.max(EDGE, ...[q, ...k, ...v].flat().map((x) => 1.15 * Math.abs(x)));
    [$("#count").value, $("#size").value, $("#mask").value] = [k.length, d, mask];
    $("#filled").hidden = !labels;
    paint();
  }

  // Vectors in a plane: along an axis, and in the direction in which one of them leaves it most.
  function flat(vectors, axis) {
    const unit = (x) => x.map((value) => value / (Math.sqrt(dot(x, x)) || 1)), first = unit(axis);
    const left = vectors.map((x) => x.map((value, c) => value - dot(x, first) * first[c]));
    const [most] = best(left.map((x) => dot(x, x)), 1), second = unit(left[most]);
    return vectors.map((x) => [dot(x, first), dot(x, second)]);
  }

  // The vectors of a head, as steps.trace has them, of the tokens at which it looks most.
  function fill({ q, k, v, y, weights, config }, label) {
    const shown = best(weights, 5).filter((n) => weights[n]).sort((a, b) => a - b);
    const [flatQ, ...flatK] = flat([q, ...shown.map((n) => k[n])], q);
    const flatV = flat(shown.map((n) => v[n]), y), d = config.score === "dot" ? 1 : q.length;
    lay({ d, mask: "everything", q: flatQ, k: flatK, v: flatV, labels: shown.map(label) });
    $("#tab-playground").click();
  }

  // ---- Why √d: 100 queries and 8 keys for each, of d independent features of variance 1
  function independent(d) {
    const feature = () => Math.sqrt(12) * (Math.random() - 0.5);
    const vector = () => Float32Array.from({ length: d }, feature);
    const draws = Array.from({ length: 100 }, () => {
      const q = vector();
      return Array.from({ length: 8 }, () => dot(q, vector()));
    });
    const average = (numbers) => sum(numbers) / numbers.length;
    const softened = (divisor) => {
      const all = draws.map((row) => Math.max(...softmax(row.map((x) => x / divisor))));
      return [average(all), average(all.map((weight) => weight * (1 - weight)))];
    };
    const spread = Math.sqrt(average(draws.flat().map((x) => x * x)));
    return [spread, ...softened(1), ...softened(Math.sqrt(d))];
  }

  for (const d of [2, 8, 64, 512]) {
    const cells = [d, ...independent(d).map(digits)].map((text) => make("td", {}, text));
    $("#features tbody").append(make("tr", {}, ...cells));
  }

  plane($("#keys"), [...keys, query]);
  plane($("#values"), values);
  $("#values").append($("#output")); // above the values
  for (const id of ["#count", "#size", "#temperature", "#mask"])
    $(id).addEventListener("input", paint);
  $("#restart").addEventListener("click", () => lay(START));
  lay(START);
  return { fill };
})();

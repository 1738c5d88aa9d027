// The second tab: one query, five keys and their values, in two dimensions, to drag about or to
// type. With d features the two are repeated d / 2 times, so that q·k grows with d, as it does in a
// model.
"use strict";
{
  const AT = 3; // where the query stands, counted from 0
  const REACH = 2.3; // how far something can be dragged
  const query = { name: "q", at: [1.0, 0.3] };
  const named = (letter, points) => points.map((at, n) => ({ name: `${letter}${n + 1}`, at }));
  const keys = named("k", [[-1.1, 1.3], [1.5, 1.4], [0.3, -1.5], [1.7, -0.3], [-1.6, -0.7]]);
  const values = named("v", [[-1.7, 0.5], [0.6, 1.8], [-0.5, -1.7], [1.9, 0.1], [-1.2, -1.3]]);
  const MASKS = {
    causal: (i, j) => j <= i,
    window: (i, j) => j <= i && j > i - 2,
    everything: () => true,
  };

  // ---- The maths of attention.py, for one query
  const size = () => Number($("#size").value); // features of a head
  const dot = (a, b) => (size() / 2) * (a[0] * b[0] + a[1] * b[1]);

  function softmax(scores) {
    const largest = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }

  // sparsemax: weight = max(score - tau, 0), with the one tau for which they sum to 1
  function threshold(scores) {
    let sum = 0, tau = 0;
    [...scores].sort((a, b) => b - a).forEach((score, n) => {
      sum += score;
      if (1 + (n + 1) * score > sum) tau = (sum - 1) / (n + 1);
    });
    return tau;
  }

  const sparsemax = (scores) => scores.map((score) => Math.max(0, score - threshold(scores)));

  function attend() {
    const divisor = ($("#root").checked ? Math.sqrt(size()) : 1) * Number($("#temperature").value);
    const visible = MASKS[$("#mask").value];
    const seen = keys.map((_, j) => j).filter((j) => visible(AT, j));
    const scores = seen.map((j) => dot(query.at, keys[j].at) / divisor);
    const shares = ($("#normalize").value === "softmax" ? softmax : sparsemax)(scores);
    const weights = keys.map((_, j) => (seen.includes(j) ? shares[seen.indexOf(j)] : 0));
    const output = [0, 1].map((x) => sum(weights.map((weight, j) => weight * values[j].at[x])));
    return { divisor, seen, scores, weights, output };
  }

  // ---- Two planes
  const line = (x, y, name) => make("line", { x1: 0, y1: 0, x2: x, y2: -y, class: name });

  function plane(svg, things) {
    svg.append(make("line", { x1: -2.5, x2: 2.5, y1: 0, y2: 0, class: "axis" }));
    svg.append(make("line", { y1: -2.5, y2: 2.5, x1: 0, x2: 0, class: "axis" }));
    const arrow = svg.appendChild(line(0, 0, svg.id === "keys" ? "arrow" : "output"));
    for (const thing of things) {
      thing.ring = make("circle", { r: 0.27, class: "ring" });
      thing.disc = make("circle", { r: 0, class: thing === query ? "query" : "fill" });
      const name = make("text", {}, thing.name);
      thing.handle = make("g", {
        role: "slider", tabindex: 0, id: `drag-${thing.name}`, "aria-label": thing.name,
        "aria-valuemin": -REACH, "aria-valuemax": REACH,
      }, thing.ring, thing.disc, name);
      if (thing !== query) name.setAttribute("dy", 0.42);
      svg.append(thing.handle);
      draggable(svg, thing);
    }
    return arrow;
  }

  function move(thing, x, y) {
    const within = (value) => Math.min(REACH, Math.max(-REACH, value));
    thing.at = [x, y].map((value) => Math.round(100 * within(value)) / 100);
    paint();
  }

  const STEPS = {
    ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1],
  };

  function draggable(svg, thing) {
    const { handle } = thing;
    let offset = null; // between the pointer and the centre of what it has taken hold of
    const where = (event) => {
      const place = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - place.left, event.clientY - place.top];
      return [5 * x / place.width - 2.5, 2.5 - 5 * y / place.height];
    };
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      const [x, y] = where(event);
      offset = [thing.at[0] - x, thing.at[1] - y];
    });
    handle.addEventListener("pointermove", (event) => {
      if (!offset) return;
      const [x, y] = where(event);
      move(thing, x + offset[0], y + offset[1]);
    });
    for (const end of ["pointerup", "pointercancel"])
      handle.addEventListener(end, () => { offset = null; });
    handle.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      move(thing, thing.at[0] + step[0], thing.at[1] + step[1]);
    });
  }

  const [asks, answer] = [plane($("#keys"), [...keys, query]), plane($("#values"), values)];
  const end = make("circle", { r: 0.09, class: "output-end", id: "output" });
  $("#values").append(end);

  // ---- In numbers
  const HEAD = ["key", "value", "q·k", "score", "weight", ""];

  // A field for the two numbers of a thing, such as "1.5, 0.3".
  function typed(thing) {
    const name = `numbers of ${thing.name}`;
    thing.field = make("input", { id: `type-${thing.name}`, size: 9, "aria-label": name });
    thing.field.addEventListener("change", () => {
      const words = thing.field.value.replaceAll("−", "-").split(/[\s,;]+/);
      const numbers = words.filter(Boolean).map(Number);
      if (numbers.length === 2 && numbers.every(Number.isFinite)) move(thing, ...numbers);
      else paint(); // what was there
    });
    return thing.field;
  }

  $("#numbers thead").append(make("tr", {}, ...HEAD.map((name) => make("th", {}, name))));
  $("#type-q").append(typed(query));
  const rows = keys.map((key, j) => {
    const cells = HEAD.map(() => make("td"));
    cells[0].append(key.name, " ", typed(key));
    cells[1].append(typed(values[j]));
    cells[5].append(make("span", { class: "bar" }));
    const row = make("tr", {}, ...cells);
    $("#numbers tbody").append(row);
    return { row, cells };
  });

  const digits = (x) => x.toFixed(2).replace("-", "−").replace("−0.00", "0.00");
  const below = (n) => String(n).replace(/\d/g, (digit) => "₀₁₂₃₄₅"[digit]);
  const point = (at) => `(${digits(at[0])}, ${digits(at[1])})`;

  function formula({ divisor, seen, scores, weights, output }) {
    const best = seen.reduce((a, b) => (weights[b] > weights[a] ? b : a));
    const [n, [q0, q1], [k0, k1]] = [below(best + 1), query.at, keys[best].at];
    const by = `${$("#root").checked ? `√${size()} · ` : ""}${$("#temperature").value}`;
    const score = scores[seen.indexOf(best)];
    const times = size() > 2 ? `${size() / 2} · ` : "";
    const product = `${times}(${digits(q0)}·${digits(k0)} + ${digits(q1)}·${digits(k1)})`;
    const ends = `${product} / ${digits(divisor)} = ${digits(score)}`;
    const lines = [`score${n} = q·k${n} / (${by}) = ${ends}`];
    const weight = digits(weights[best]);
    if ($("#normalize").value === "softmax") {
      const powers = seen.map((j, at) => `e^${digits(scores[at])}`);
      lines.push(`weight${n} = e^${digits(score)} / (${powers.join(" + ")}) = ${weight}`);
    } else {
      const tau = digits(threshold(scores));
      const above = `max(score${n} − τ, 0) = max(${digits(score)} − ${tau}, 0)`;
      lines.push(`weight${n} = ${above} = ${weight}   (τ: so that all add up to 1)`);
    }
    const terms = seen.map((j) => `${digits(weights[j])}·v${below(j + 1)}`);
    lines.push(`output = ${terms.join(" + ")} = ${point(output)}`);
    return lines.join("\n");
  }

  function paint() {
    const now = attend();
    for (const thing of [query, ...keys, ...values]) {
      thing.handle.setAttribute("transform", `translate(${thing.at[0]} ${-thing.at[1]})`);
      thing.handle.setAttribute("aria-valuenow", thing.at[0]);
      thing.handle.setAttribute("aria-valuetext", point(thing.at));
      [thing.handle.dataset.x, thing.handle.dataset.y] = thing.at;
      thing.field.value = thing.at.map(digits).join(", ");
    }
    query.disc.setAttribute("r", 0.27);
    now.weights.forEach((weight, j) => {
      for (const thing of [keys[j], values[j]]) {
        thing.disc.setAttribute("r", 0.27 * Math.sqrt(weight)); // the area is the weight
        thing.handle.classList.toggle("unseen", !now.seen.includes(j));
      }
      const { row, cells } = rows[j], seen = now.seen.includes(j);
      const product = dot(query.at, keys[j].at);
      row.dataset.weight = weight.toFixed(6);
      row.classList.toggle("unseen", !seen);
      cells[2].textContent = digits(product);
      cells[3].textContent = seen ? digits(product / now.divisor) : "hidden";
      cells[4].textContent = seen ? digits(weight) : "–";
      cells[5].firstChild.style.setProperty("--p", weight);
    });
    const [x, y] = now.output;
    const set = (arrow, [x, y], width) =>
      change(arrow, { x2: x, y2: -y, "stroke-width": width });
    set(asks, query.at, 0.05);
    set(answer, now.output, 0.06);
    end.setAttribute("transform", `translate(${x} ${-y})`);
    [end.dataset.x, end.dataset.y] = [x.toFixed(6), y.toFixed(6)];
    $("#temperature-value").textContent = Number($("#temperature").value).toFixed(1);
    $("#mask-says").textContent = $("#mask").selectedOptions[0].dataset.says;
    $("#formula").textContent = formula(now);
  }

  for (const id of ["#size", "#root", "#temperature", "#mask", "#normalize"])
    $(id).addEventListener("input", paint);
  paint();
}

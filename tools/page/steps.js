// The way of the numbers: what becomes of the chosen token in the chosen layer and head. The words
// of each step stand in index.html: data-is is computed here, and data-if is for some models only.
"use strict";
const steps = data.live && (() => {
  const MOST = 12; // tokens in a table: those with the largest weights
  const label = (n) => isolated(view.reading.labels[n]);

  // ---- The numbers
  function trace() {
    const { token: i, layer, head } = view.state, { gpt, notes, result } = view.live.trace();
    const { D, H, G, config } = gpt, group = Math.floor(head / (H / G)), here = notes[layer];
    const own = (rows) => rows.map((row) => row[group]);
    const part = (row, n) => row.subarray(n * D, (n + 1) * D);
    const token = gpt.weights["transformer.wte.weight"][result.ids[i]];
    const q = part(here.q, head), k = own(result.layers[layer].k), v = own(result.layers[layer].v);
    return {
      ...here, i, layer, config, token, q, k, v, ln_f: notes[config.n_layer].ln_f,
      position: notes[0].x.map((x, c) => x - token[c]), embedding: notes[0].x,
      products: k.map((key) => dot(q, key)), scores: here[`scores.${head}`],
      weights: result.layers[layer].maps[head][i], y: part(here.joined, head),
      logits: result.logits[i],
    };
  }

  // What the words say of them, and which of the words are said.
  function words({ i, layer, config, q, products, scores }) {
    const hidden = scores.map((score) => score === -Infinity);
    const seen = (all) => softmax(all.map((x, n) => (hidden[n] ? -Infinity : x)));
    const most = (all) => number(Math.max(...seen(all)));
    return {
      text: label(i), place: i + 1, layer, heads: config.n_head, width: config.n_embd,
      head: view.state.head + 1, later: view.reading.ids.length - 1 - i, hidden: sum(hidden),
      D: q.length, root: digits(Math.sqrt(q.length)), undivided: most(products), most: most(scores),
      learned: ["learned", "sinusoidal"].includes(config.position), qk_norm: config.qk_norm,
      rope: config.position === "rope", alibi: config.visible.startsWith("alibi"),
      dot: config.score === "dot", scaled: config.score !== "dot", more: layer < config.n_layer - 1,
      replaced: view.live.state.changes[`${layer}.${view.state.head}`],
    };
  }

  // ---- Pictures
  const largest = (numbers) => numbers.reduce((a, b) => Math.max(a, Math.abs(b)), 0);

  // A vector as a row of cells, the stronger the further from 0, with its numbers on hover.
  function strip(name, vector, most = largest(vector)) {
    const size = vector.length, canvas = make("canvas", { width: size, height: 1 });
    const picture = new ImageData(size, 1), pixels = new Uint32Array(picture.data.buffer);
    const [more, less] = ["--weight", "--loss"].map(colour);
    vector.forEach((x, n) => {
      const [r, g, b] = x > 0 ? more : less;
      pixels[n] = ((Math.abs(255 * x / most) << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
    canvas.getContext("2d").putImageData(picture, 0, 0);
    const range = name && `±${digits(most)}`, said = make("small", {}, range);
    canvas.onpointerleave = () => { said.textContent = range; };
    canvas.onpointermove = canvas.onpointerdown = ({ offsetX }) => {
      const n = Math.min(size - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * size)));
      said.textContent = `${n + 1}: ${digits(vector[n])}`;
    };
    return make("div", { class: "strip" }, make("span", {}, name), canvas, said);
  }

  const strips = (...pairs) => pairs.map((pair) => strip(...pair));

  const line = (cell, all) => make("tr", {}, ...all.map((one) => make(cell, {}, one)));
  const table = (head, rows) => make("div", { class: "wide" },
    make("table", {}, line("th", head), ...rows.map((row) => line("td", row))));

  // What the query makes of each key: the first columns of a table, as far as a step needs them.
  const comparison = (columns, mask = "−∞") => (found) => {
    const { q, k, products, scores, weights, dot, scaled, alibi, root } = found;
    const rows = best(weights, MOST).sort((a, b) => a - b), top = Math.max(...scores);
    const size = largest(k.flatMap((key) => [...key])), others = k.length - rows.length;
    const shares = scores.map((score) => Math.exp(score - top));
    const plain = (n) => digits(products[n] / (dot ? 1 : Math.sqrt(q.length)));
    const all = [
      ["token", label, "sum"],
      ["k", (n) => strip("", k[n], size), ""],
      ["q·k", (n) => digits(products[n]), ""],
      [scaled && !alibi ? `score = q·k ÷ ${root}` : "score",
        (n) => (scores[n] > -Infinity ? digits(scores[n]) : mask || plain(n)), ""],
      [`e^(score − ${digits(top)})`, (n) => shares[n].toFixed(3), sum(shares).toFixed(3)],
      ["weight", (n) => weights[n].toFixed(3), sum(weights).toFixed(3)],
    ].slice(0, columns);
    const cells = rows.map((n) => all.map(([, cell]) => cell(n)));
    if (columns > 4) cells.push(all.map(([, , total]) => total));
    const more = others > 0 ? make("p", { class: "soft" }, `${others} more tokens have less.`) : "";
    return [strip("q", q), table(all.map(([name]) => name), cells), more];
  };

  function mixture({ weights, v, y }) {
    const rows = best(weights, MOST).filter((n) => weights[n] >= 0.005).sort((a, b) => a - b);
    const size = largest(rows.flatMap((n) => [...v[n]]));
    const cells = rows.map((n) => [label(n), weights[n].toFixed(3), strip("", v[n], size)]);
    return [table(["token", "weight", "v"], cells), strip("y", y)];
  }

  function expected({ ln_f, logits }) {
    const shares = softmax(logits);
    const cells = best(logits, 5).map((id) =>
      [view.live.label(id), digits(logits[id]), number(shares[id])]);
    return [strip("x", ln_f), table(["token", "logit", "probability"], cells)];
  }

  const FIGURES = [ // of each step
    (t) => strips(["token", t.token], ["position", t.position], ["x", t.embedding],
      [`x, layer ${t.layer}`, t.x]).filter((_, n) => [true, t.learned, t.learned, t.layer][n]),
    (t) => strips(["x", t.x], ["ln_1(x)", t.ln_1]),
    (t) => strips(["q", t.q], ["k", t.k[t.i]], ["v", t.v[t.i]]),
    comparison(3), comparison(4, ""), comparison(4), comparison(6), mixture,
    (t) => strips(["y of all heads", t.joined], ["W_O y", t.attn]),
    (t) => strips(["x before", t.x], ["+ attention", t.attn], ["x", t.between]),
    (t) => strips(["ln_2(x)", t.ln_2], ["+ MLP", t.mlp], ["x", t.out]),
    expected,
  ];

  // ---- One step, or all
  const all = $("#all-steps"), items = $$("#step-list > li");
  let now = 0, asked;

  function paint() {
    const isHead = view.state.head < data.heads, found = isHead ? trace() : {};
    const said = isHead ? words(found) : {}, { text, layer, head } = said;
    $("#steps-who").textContent = isHead ? `“${text}”, layer ${layer + 1}, head ${head}`
      : "choose one head, not the rollout";
    for (const element of $$("#steps [data-is]")) element.textContent = said[element.dataset.is];
    for (const element of $$("#steps [data-if]")) element.hidden = !said[element.dataset.if];
    items.forEach((item, n) => {
      item.hidden = !isHead || (n !== now && !all.checked);
      // Where all steps are shown, the seventh has the figures of those before it.
      const drawn = !item.hidden && !(all.checked && [3, 4, 5].includes(n));
      item.lastElementChild.replaceChildren(...(drawn ? FIGURES[n]({ ...found, ...said }) : []));
      buttons[n].setAttribute("aria-pressed", all.checked || n === now);
    });
    $("#step-play").disabled = !isHead;
    $("#step-next").disabled = all.checked || now === items.length - 1;
  }

  function go(n, whole = false) {
    [now, all.checked] = [items[n] ? n : 0, whole];
    paint();
  }

  const buttons = items.map((item, n) => {
    const title = item.firstElementChild, button = make("button", {}, title.textContent);
    title.prepend(`${n + 1}. `);
    button.addEventListener("click", () => go(n));
    return button;
  });
  $("#step-names").append(...buttons);
  $("#step-next").addEventListener("click", () => go(now + 1));
  all.addEventListener("input", paint);
  $("#step-play").addEventListener("click", () => playground.fill(trace(), label));
  addEventListener("chosen", async () => { // typing need not wait
    const mine = asked = {};
    await rest();
    if (mine === asked && !$("#attention.empty")) paint();
  });
  paint();
  return { trace, go, get step() { return all.checked ? "all" : now + 1; } };
})();

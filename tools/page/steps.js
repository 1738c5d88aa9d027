// The way of the numbers: what becomes of the chosen token in the chosen layer and head, from its
// embedding to the token after it, each step with the line of code that does it.
"use strict";
const steps = data.live && (() => {
  const CODE = { // as it stands in the file
    embed: ["model.py", `x = self.transformer.wpe.add(self.transformer.wte(idx), index)`],
    attend: ["model.py", `x = x + self.attn(self.ln_1(x), rope, cache)`],
    project: ["attention.py", `qk, v = self.c_attn(x).split([(H + G) * D, G * Dv], dim=2)`],
    norm: ["attention.py", `qk = self.qk_norm(qk)`],
    turn: ["attention.py", `qk = rotate(qk, cos[..., None, :], sin[..., None, :])`],
    dot: ["attention.py", `return q @ k.mT`],
    scale: ["attention.py", `return dot(q, k) / math.sqrt(q.shape[-1])`],
    bias: ["attention.py", `scores = scores + bias`],
    mask: ["attention.py", `weights = normalize(scores.masked_fill(~mask, float("-inf")))`],
    softmax: ["attention.py", `return scores.softmax(dim=-1)`],
    mix: ["attention.py", `.to(v.dtype) @ share_heads(q, v)`],
    join: ["attention.py", `y = y.transpose(1, 2).flatten(2)`],
    write: ["attention.py", `return self.dropout(self.c_proj(y))`],
    think: ["model.py", `return x + self.mlp(self.ln_2(x))`],
    end: ["model.py", `return self.transformer.ln_f(x)`],
    logits: ["model.py", `logits = self.lm_head(x)`],
  };
  const MOST = 12; // tokens in a table: those with the largest weights

  // ---- The numbers
  function trace() {
    const { token: i, layer, head } = view.state, { gpt, notes, result } = view.live.trace();
    const { D, H, G, config } = gpt, group = Math.floor(head / (H / G)), here = notes[layer];
    const own = (rows) => rows.map((row) => row[group]);
    const part = (row, n) => row.subarray(n * D, (n + 1) * D);
    const token = gpt.weights["transformer.wte.weight"][result.ids[i]];
    const q = part(here.q, head), k = own(result.layers[layer].k), v = own(result.layers[layer].v);
    return {
      ...here, i, layer, head, D, config, token, q, k, v, ln_f: notes[config.n_layer].ln_f,
      position: notes[0].x.map((x, c) => x - token[c]), embedding: notes[0].x,
      plainQ: part(here.projected, head), plainK: part(here.projected, H + group),
      products: k.map((key) => dot(q, key)), scores: here[`scores.${head}`],
      weights: result.layers[layer].maps[head][i], y: part(here.joined, head),
      logits: result.logits[i], replaced: view.live.state.changes[`${layer}.${head}`],
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
    const read = ({ offsetX }) => {
      const n = Math.min(size - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * size)));
      said.textContent = `${n + 1}: ${digits(vector[n])}`;
    };
    for (const type of ["pointermove", "pointerdown"]) canvas.addEventListener(type, read);
    canvas.addEventListener("pointerleave", () => { said.textContent = range; });
    return make("div", { class: "strip" }, make("span", {}, name), canvas, said);
  }

  const label = (n) => isolated(view.reading.labels[n]);
  const strips = (...pairs) => pairs.map(([name, vector]) => strip(name, vector));

  function table(head, rows) {
    const line = (cell) => (cells) => make("tr", {}, ...cells.map((one) => make(cell, {}, one)));
    return make("div", { class: "wide" }, make("table", {}, line("th")(head), ...rows.map(line("td"))));
  }

  // What the query makes of each key: the first columns of the table, as far as a step needs them.
  function comparison({ q, k, v, i, products, scores, weights, y }, columns) {
    const rows = best(weights, MOST).sort((a, b) => a - b), top = Math.max(...scores);
    const size = largest(k.flatMap((key) => [...key])), hidden = (n) => scores[n] === -Infinity;
    const shares = scores.map((score) => Math.exp(score - top)), others = k.length - rows.length;
    const score = (n) => (hidden(n) ? "−∞" : digits(scores[n]));
    const all = [
      ["token", label, ""],
      ["k", (n) => strip("", k[n], size), ""],
      ["q·k", (n) => digits(products[n]), ""],
      ["score", score, ""],
      [`e^(score − ${digits(top)})`, (n) => shares[n].toFixed(3), sum(shares).toFixed(3)],
      ["weight", (n) => weights[n].toFixed(3), sum(weights).toFixed(3)],
    ].slice(0, columns);
    const cells = rows.map((n) => all.map(([, cell]) => cell(n)));
    if (columns > 4) cells.push(all.map(([, , total], n) => (n ? total : "sum")));
    const more = others > 0 ? [make("p", { class: "soft" }, `${others} more tokens have less.`)] : [];
    return [strip("q", q), table(all.map(([name]) => name), cells), ...more];
  }

  function mixture({ i, weights, v, y }) {
    const rows = best(weights, MOST).filter((n) => weights[n] >= 0.005).sort((a, b) => a - b);
    const size = largest(rows.flatMap((n) => [...v[n]]));
    const cells = rows.map((n) => [label(n), weights[n].toFixed(3), strip("", v[n], size)]);
    return [table(["token", "weight", "v"], cells), strip("y", y)];
  }

  function expected({ ln_f, logits }) {
    const shares = softmax(logits), rows = best(logits, 5);
    const cells = rows.map((id) => [view.live.label(id), digits(logits[id]), number(shares[id])]);
    return [strip("x", ln_f), table(["token", "logit", "probability"], cells)];
  }

  // ---- The steps. A figure that the next step goes on with is left out where all are shown.
  const learned = ({ config }) => ["learned", "sinusoidal"].includes(config.position);
  const STEPS = [{
    name: "embedding",
    code: () => ["embed"],
    says: (t) => `The row of “${label(t.i)}” in the table of embeddings` +
      (learned(t) ? ` plus the vector of position ${t.i + 1}` : "") +
      (t.layer ? `; then layers 1 to ${t.layer} have added to it.` : ".") +
      (t.config.position === "rope" ? " Its position comes in later: it turns q and k." : ""),
    figure: (t) => strips(["token", t.token],
      ...(learned(t) ? [["position", t.position], ["x", t.embedding]] : []),
      ...(t.layer ? [[`x, layer ${t.layer}`, t.x]] : [])),
  }, {
    name: "norm",
    code: () => ["attend"],
    says: () => "ln_1 brings x to the same size at every token.",
    figure: (t) => strips(["x", t.x], ["ln_1(x)", t.ln_1]),
  }, {
    name: "q, k, v",
    code: (t) => ["project", ...(t.config.qk_norm ? ["norm"] : []),
      ...(t.config.position === "rope" ? ["turn"] : [])],
    says: (t) => `Three matrices make of it a query (what it looks for), a key (how others find it)
      and a value (what they take from it), of ${t.D} numbers each.` +
      (t.config.position === "rope" ? ` q and k are turned by an angle for position ${t.i + 1}.` : ""),
    figure: (t) => strips(
      ...(t.config.position === "rope" ? [["q unturned", t.plainQ], ["k unturned", t.plainK]] : []),
      ["q", t.q], ["k", t.k[t.i]], ["v", t.v[t.i]]),
  }, {
    name: "q·k",
    code: () => ["dot"],
    says: () => "The query is multiplied with the key of each token up to here, feature by feature, and summed: how alike are they?",
    figure: (t) => comparison(t, 3), goesOn: true,
  }, {
    name: "÷ √D",
    code: (t) => [t.config.score === "dot" ? "dot" : "scale",
      ...(t.config.visible.startsWith("alibi") ? ["bias"] : [])],
    says(t) {
      const seen = t.products.map((x, n) => (t.scores[n] === -Infinity ? -Infinity : x));
      const [without, most] = [seen, t.scores].map((x) => number(Math.max(...softmax(x))));
      return (t.config.score === "dot" ? "This model does not divide."
        : `Why? A sum of ${t.D} products spreads √${t.D} = ${digits(Math.sqrt(t.D))} times as wide
          as one of them. Undivided, the largest weight here would be ${without}, and it is ${most}:
          softmax of wide scores picks one key, and its gradient vanishes.`) +
        (t.config.visible.startsWith("alibi") ? " ALiBi takes off more for keys further back." : "");
    },
    figure: (t) => comparison(t, 4), goesOn: true,
  }, {
    name: "mask",
    code: () => ["mask"],
    says(t) {
      const hidden = t.scores.filter((score) => score === -Infinity).length;
      const later = view.reading.ids.length - 1 - t.i;
      const window = hidden ? `, and this layer's window the ${hidden} furthest back` : "";
      return `−∞ where it may not look: causal hides the ${later} tokens after it${window}.`;
    },
    figure: (t) => comparison(t, 4), goesOn: true,
  }, {
    name: "softmax",
    code: () => ["softmax"],
    says: (t) => (t.replaced ? `You have replaced it: the weights are ${t.replaced}.`
      : `e^score, divided by the sum: the weights are positive and sum to 1. From each score the
        largest is taken off first, which changes nothing.`),
    figure: (t) => comparison(t, 6),
  }, {
    name: "Σ weight · v",
    code: () => ["mix"],
    says: () => "The values, each times its weight, are added up: what this head fetches.",
    figure: mixture,
  }, {
    name: "W_O",
    code: () => ["join", "write"],
    says: (t) => `The ${t.config.n_head} heads' y stand side by side (this one is number
      ${t.head + 1}), and the matrix W_O (c_proj) brings them back to ${t.config.n_embd} numbers.`,
    figure: (t) => strips(["y of all heads", t.joined], ["W_O y", t.attn]),
  }, {
    name: "residual",
    code: () => ["attend"],
    says: () => "Attention adds to x and replaces nothing.",
    figure: (t) => strips(["x before", t.x], ["+ attention", t.attn], ["x", t.between]),
  }, {
    name: "MLP",
    code: () => ["think"],
    says: () => "The MLP works on each token by itself, and its result is added, too.",
    figure: (t) => strips(["ln_2(x)", t.ln_2], ["+ MLP", t.mlp], ["x", t.out]),
  }, {
    name: "next token",
    code: () => ["end", "logits"],
    says: (t) => (t.config.n_layer - t.layer > 1 ? "The layers above do the same. " : "") +
      "After the last one, x is compared with a vector of each token: the logits. Their softmax is what comes next.",
    figure: expected,
  }];

  // ---- One step, or all
  const list = $("#step-list"), all = $("#all-steps"), names = $("#step-names");
  let now = 0;

  function link(key) {
    const [file, code] = CODE[key], href = `${home}${file}#L${data.live.lines[code]}`;
    return make("a", { class: "code", href, title: `${file}, line ${data.live.lines[code]}` },
      make("code", {}, code));
  }

  function paintStep({ name, code, says, figure, goesOn }, n, found) {
    const pictures = all.checked && goesOn ? [] : figure(found);
    return make("li", { "data-step": name }, make("h3", {}, `${n + 1}. ${name}`),
      make("p", {}, says(found)), ...code(found).map(link), ...pictures);
  }

  function paint() {
    const { token, layer, head } = view.state, isHead = head < data.heads;
    $("#steps-who").textContent = isHead
      ? `“${label(token)}” in layer ${layer + 1}, head ${head + 1}` : "choose one head, not the rollout";
    names.querySelectorAll("button").forEach((button, n) =>
      button.setAttribute("aria-pressed", all.checked || n === now));
    $("#step-next").disabled = all.checked || now === STEPS.length - 1;
    if (!isHead) return list.replaceChildren();
    const found = trace(), shown = all.checked ? STEPS : [STEPS[now]];
    list.replaceChildren(...shown.map((step) => paintStep(step, STEPS.indexOf(step), found)));
  }

  function go(n) {
    [now, all.checked] = [n, false];
    paint();
  }

  names.append(...STEPS.map(({ name }, n) => {
    const button = make("button", {}, name);
    button.addEventListener("click", () => go(n));
    return button;
  }));
  $("#step-next").addEventListener("click", () => go(now + 1));
  all.addEventListener("input", paint);
  addEventListener("chosen", paint);
  paint();
  return { trace, go, all(whole) { all.checked = whole; paint(); }, get step() { return now; } };
})();

// The GPT of model.py and attention.py, with their names, to be read beside them. A vector is a
// Float32Array; a matrix, or a text of T tokens, is an array of vectors. C features of the residual
// stream; H query heads, G key/value heads of D features.
"use strict";

// ---- Linear, norms, activations
// y = x W^T + b for each token of x.
function linear(x, weight, bias) {
  const y = x.map(() => new Float32Array(weight.length));
  for (let n = 0; n < x.length; n += 2)
    for (let o = 0; o < weight.length; o += 4) multiply(x, weight, y, n, o);
  if (bias) for (const row of y) addTo(row, 1, bias);
  return y;
}

// Two tokens and four outputs at a time, so that each number is read once for several products.
// Where there are fewer, the first takes the place of the others.
function multiply(x, weight, y, n, o) {
  const a = x[n], b = x[n + 1] ?? a, ya = y[n], yb = y[n + 1] ?? ya;
  const p = weight[o], q = weight[o + 1] ?? p, r = weight[o + 2] ?? p, s = weight[o + 3] ?? p;
  let ap = 0, aq = 0, ar = 0, as = 0, bp = 0, bq = 0, br = 0, bs = 0;
  for (let k = 0; k < a.length; k++) {
    const ak = a[k], bk = b[k], pk = p[k], qk = q[k], rk = r[k], sk = s[k];
    ap += ak * pk, aq += ak * qk, ar += ak * rk, as += ak * sk;
    bp += bk * pk, bq += bk * qk, br += bk * rk, bs += bk * sk;
  }
  ya[o] = ap, ya[o + 1] = aq, ya[o + 2] = ar, ya[o + 3] = as; // nothing is written past the end
  yb[o] = bp, yb[o + 1] = bq, yb[o + 2] = br, yb[o + 3] = bs;
}

function dot(a, b) {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}

function addTo(y, factor, x) {
  for (let k = 0; k < y.length; k++) y[k] += factor * x[k];
}

// A vector divided by its root mean square, times a scale, plus a bias, if any.
function rmsNorm(x, eps, weight, bias) {
  const y = new Float32Array(x.length), r = 1 / Math.sqrt(dot(x, x) / x.length + eps);
  for (let k = 0; k < y.length; k++) y[k] = x[k] * r * (weight ? weight[k] : 1);
  if (bias) addTo(y, 1, bias);
  return y;
}

function layerNorm(x, eps, weight, bias) {
  const mean = sum(x) / x.length;
  return rmsNorm(x.map((value) => value - mean), eps, weight, bias);
}

const RMS_EPS = 2 ** -23; // what float32 adds to a mean square if the config says 0

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const ACTIVATION = {
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(0, x),
  relu2: (x) => Math.max(0, x) ** 2,
  silu: (x) => x * sigmoid(x),
};

// ---- Who may look: visible(i, j), for j <= i
const VISIBLE = {
  causal: () => () => true,
  sliding_window: (W) => (i, j) => j > i - W,
  local_global: (W, G) => (i, j) => j > i - W || j < G,
  strided: (S) => (i, j) => i - j < S || (i - j) % S === 0,
  chunks: (S) => (i, j) => Math.floor(i / S) === Math.floor(j / S),
  alibi: () => () => true,
};

// The predicate of a setting such as local_global:64,4, limited to a window, if there is one.
function predicate(spec, window) {
  const [name, numbers] = spec.split(":");
  const visible = VISIBLE[name](...(numbers ?? "").split(",").map(Number));
  return window ? (i, j) => j > i - window && visible(i, j) : visible;
}

// ---- Attention
function softmax(scores) {
  const shares = scores.slice();
  let largest = -Infinity, total = 0;
  for (const score of scores) largest = Math.max(largest, score);
  for (let k = 0; k < shares.length; k++) total += shares[k] = Math.exp(shares[k] - largest);
  for (let k = 0; k < shares.length; k++) shares[k] /= total;
  return shares;
}

// What a head's weights may be replaced by: shares of the scores (i + 1 of them) of query i.
const REPLACED = {
  off: (scores) => scores.map(() => 0),
  uniform: (scores) => softmax(scores.map((score) => (score === -Infinity ? score : 0))),
  previous: (scores) => scores.map((_, j) => Number(j === Math.max(0, scores.length - 2))),
};

// Float32s of the bits of float16: a sign, five bits of exponent, ten of fraction.
function fromHalf(halves) {
  const size = Array.from({ length: 32 }, (_, exponent) => 2 ** (Math.max(1, exponent) - 25));
  return Float32Array.from(halves, (bits) => {
    const exponent = (bits >> 10) & 31, fraction = (bits & 1023) + (exponent ? 1024 : 0);
    return (bits & 0x8000 ? -1 : 1) * fraction * size[exponent];
  });
}

class GPT {
  // config: that of model.py. shapes: [[name, shape of its weights]]; weights: all of them, one
  // after the other, as base64 of float16.
  constructor({ config, shapes, weights }) {
    this.config = config;
    this.H = config.n_head;
    this.G = config.n_kv_head || config.n_head;
    this.D = config.head_size || config.n_embd / config.n_head;
    const all = fromHalf(new Uint16Array(fromBytes(atob(weights)).buffer));
    let end = 0;
    const next = (size) => all.subarray(end, (end += size));
    const matrix = (rows, size) => Array.from({ length: rows }, () => next(size));
    this.weights = {};
    for (const [name, [rows, size]] of shapes)
      this.weights[name] = size ? matrix(rows, size) : next(rows);
    const angles = Array.from({ length: Math.floor(this.D / 2) }, (_, p) =>
      config.rope_base ** ((-2 * p) / this.D));
    this.turns = once((position) =>
      angles.map((angle) => [Math.cos(position * angle), Math.sin(position * angle)]));
    this.layers = Array.from({ length: config.n_layer }, (_, n) => this.layer(n));
  }

  // What model.py's Block decides when it is made.
  layer(n) {
    const { config } = this;
    const pattern = config.window_pattern;
    const short = pattern[n % pattern.length] === "S" && config.window < config.block_size;
    return {
      name: `transformer.h.${n}`,
      visible: predicate(config.visible, short ? config.window : 0),
    };
  }

  linear(x, name) {
    return linear(x, this.weights[`${name}.weight`], this.weights[`${name}.bias`]);
  }

  norm(x, name) {
    const { norm, norm_eps } = this.config;
    const [weight, bias] = [this.weights[`${name}.weight`], this.weights[`${name}.bias`]];
    if (norm === "layernorm") return x.map((row) => layerNorm(row, norm_eps || 1e-5, weight, bias));
    return x.map((row) => rmsNorm(row, norm_eps || RMS_EPS, weight));
  }

  // The vectors (D) of each head in a row of queries or keys.
  heads(row) {
    const found = [];
    for (let at = 0; at < row.length; at += this.D) found.push(row.subarray(at, at + this.D));
    return found;
  }

  // Queries or keys, of each head.
  qkNorm(row, name) {
    const { qk_norm, norm_eps } = this.config;
    if (!qk_norm) return row;
    const weight = this.weights[`${name}.weight`];
    for (const head of this.heads(row)) head.set(rmsNorm(head, norm_eps || RMS_EPS, weight));
    return row;
  }

  // Turns each pair (p, p + half) of every head, in place.
  rotate(row, position) {
    const turns = this.turns(position), half = turns.length;
    for (const x of this.heads(row))
      turns.forEach(([cos, sin], p) => {
        const first = x[p], second = x[p + half];
        x[p] = first * cos - second * sin;
        x[p + half] = second * cos + first * sin;
      });
  }

  // The embedding of the token at a position.
  embed(id, t) {
    const { n_embd: C, position } = this.config;
    const wpe = this.weights["transformer.wpe.weight"];
    return this.weights["transformer.wte.weight"][id].map((value, c) => {
      if (position === "learned") return value + wpe[t][c];
      if (position !== "sinusoidal") return value;
      const angle = t * 10000 ** (-(c - (c % 2)) / C);
      return value + (c % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  // x: the last of the tokens. past: {k, v, maps} of this layer, of all tokens before them, to
  // which they are added. changes: what heads do instead. note: as in read.
  attention(x, layer, { k, v, maps }, changes, note) {
    const { H, G, D } = this, name = `${layer.name}.attn`, from = k.length;
    const queries = this.linear(x, `${name}.c_attn`).map((row, n) => {
      const q = this.qkNorm(row.subarray(0, H * D), `${name}.qk_norm.q`);
      const newK = this.qkNorm(row.subarray(H * D, (H + G) * D), `${name}.qk_norm.k`);
      if (this.config.position === "rope")
        for (const part of [q, newK]) this.rotate(part, from + n);
      k.push(this.heads(newK));
      v.push(this.heads(row.subarray((H + G) * D)));
      note("q", q);
      return this.heads(q);
    });
    const y = x.map(() => new Float32Array(H * D));
    y.forEach((row, n) => this.heads(row).forEach((out, h) => {
      const group = Math.floor(h / (H / G));
      const scores = this.scores(queries[n][h], k, group, from + n, h, layer);
      note(`scores.${h}`, scores);
      const weights = (REPLACED[changes[h]] ?? softmax)(scores);
      maps[h].push(weights);
      for (let j = 0; j < weights.length; j++) if (weights[j]) addTo(out, weights[j], v[j][group]);
    }));
    note("joined", y.at(-1));
    return this.linear(y, `${name}.c_proj`);
  }

  // How alike query i is to the keys up to it: (i + 1).
  scores(q, k, group, i, h, { visible }) {
    const { H, D, config } = this;
    const slope = config.visible.startsWith("alibi") ? 2 ** ((-8 * (h + 1)) / H) : 0;
    const divisor = config.score === "scaled_dot" ? Math.sqrt(D) : 1;
    const scores = new Float32Array(i + 1).fill(-Infinity);
    for (let j = 0; j <= i; j++)
      if (visible(i, j)) scores[j] = dot(q, k[j][group]) / divisor - slope * (i - j);
    return scores;
  }

  // Each position by itself.
  mlp(x, layer, change) {
    if (change) return x.map((row) => new Float32Array(row.length));
    const name = `${layer.name}.mlp`, { mlp } = this.config;
    const gated = mlp === "swiglu", act = ACTIVATION[gated ? "silu" : mlp];
    const hidden = this.linear(x, `${name}.c_fc`).map((row) => {
      const gate = gated ? row.subarray(0, row.length / 2) : row;
      const up = gated ? row.subarray(gate.length) : null;
      for (let c = 0; c < gate.length; c++) gate[c] = act(gate[c]) * (up ? up[c] : 1);
      return gate;
    });
    return this.linear(hidden, `${name}.c_proj`);
  }

  // What the model makes of token ids: {logits: of each token, layers: [{k, v, maps}]}, where
  // maps[head][i] are the weights of token i. changes: {"layer.head": off, uniform or previous,
  // "layer.mlp": off}. past: an earlier result; what it has of the same beginning is kept.
  // note(layer, name, vector) is told what becomes of each token, and last of the last one.
  read(ids, changes = {}, past = null, note = () => {}) {
    const reused = past && JSON.stringify(past.changes) === JSON.stringify(changes);
    let from = 0;
    while (reused && from < ids.length - 1 && ids[from] === past.ids[from]) from++;
    const kept = (rows) => rows?.slice(0, from) ?? [];
    const x = ids.slice(from).map((id, n) => this.embed(id, from + n));
    const layers = this.layers.map((layer, l) => {
      const old = past?.layers[l], heads = Array.from({ length: this.H }, (_, h) => h);
      const maps = heads.map((h) => kept(old?.maps[h]));
      const memory = { k: kept(old?.k), v: kept(old?.v), maps };
      const replaced = heads.map((h) => changes[`${l}.${h}`]);
      const noted = (name, vector) => note(l, name, vector);
      const last = (name, rows) => (noted(name, rows.at(-1)), rows);
      const attend = (x) => last("attn", this.attention(x, layer, memory, replaced, noted));
      const think = (x) => last("mlp", this.mlp(x, layer, changes[`${l}.mlp`]));
      const ln = (x, part) => last(part, this.norm(x, `${layer.name}.${part}`));
      const add = (y) => y.forEach((row, n) => addTo(x[n], 1, row));
      last("x", x);
      add(attend(ln(x, "ln_1")));
      last("between", x);
      add(think(ln(x, "ln_2")));
      last("out", x);
      return memory;
    });
    const head = this.config.tie_weights ? "transformer.wte" : "lm_head";
    const final = this.norm(x, "transformer.ln_f");
    note(this.layers.length, "ln_f", final.at(-1));
    const logits = this.linear(final, head);
    return { ids, changes, layers, logits: [...kept(past?.logits), ...logits] };
  }

  // Where the context of a text of T tokens begins: a full one keeps its last half.
  contextStart(T) {
    const size = this.config.block_size, hop = size + 1 - Math.max(1, Math.floor(size / 2));
    return hop * Math.ceil(Math.max(0, T - size) / hop);
  }
}

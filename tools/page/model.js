// The GPT of model.py and attention.py, with their names, to be read beside them. Numbers are
// Float32Arrays, a matrix (rows, columns) is its rows one after the other. T tokens, of which n are
// new; C features of the residual stream; H query heads, G key/value heads of D features.
"use strict";

// ---- Linear, norms, activations

// y = x W^T + b: x (n, size), weight (out, size) -> (n, out). Four rows and two outputs at a time,
// so that each number is read once for several products; the last ones may be the same again.
function linear(x, n, weight, bias) {
  const size = x.length / n, out = weight.length / size;
  const y = new Float32Array(n * out);
  for (let first = 0; first < n; first += 4) {
    const rows = [0, 1, 2, 3].map((k) => Math.min(first + k, n - 1));
    const [a, b, c, d] = rows.map((row) => row * size);
    const [ya, yb, yc, yd] = rows.map((row) => row * out);
    for (let o = 0; o < out; o += 2) {
      const p = Math.min(o + 1, out - 1), rowO = o * size, rowP = p * size;
      let ao = bias ? bias[o] : 0, bo = ao, co = ao, dO = ao;
      let ap = bias ? bias[p] : 0, bp = ap, cp = ap, dp = ap;
      for (let k = 0; k < size; k++) {
        const wo = weight[rowO + k], wp = weight[rowP + k];
        const xa = x[a + k], xb = x[b + k], xc = x[c + k], xd = x[d + k];
        ao += xa * wo, bo += xb * wo, co += xc * wo, dO += xd * wo;
        ap += xa * wp, bp += xb * wp, cp += xc * wp, dp += xd * wp;
      }
      y[ya + o] = ao, y[yb + o] = bo, y[yc + o] = co, y[yd + o] = dO;
      y[ya + p] = ap, y[yb + p] = bp, y[yc + p] = cp, y[yd + p] = dp;
    }
  }
  return y;
}

// Each `size` numbers of x divided by their root mean square, times a scale, plus a bias, if any.
function rmsNorm(x, size, eps, weight, bias) {
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += size) {
    let sum = 0;
    for (let k = 0; k < size; k++) sum += x[start + k] ** 2;
    const r = 1 / Math.sqrt(sum / size + eps);
    for (let k = 0; k < size; k++)
      y[start + k] = x[start + k] * r * (weight ? weight[k] : 1) + (bias ? bias[k] : 0);
  }
  return y;
}

function layerNorm(x, size, eps, weight, bias) {
  const centred = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += size) {
    let sum = 0;
    for (let k = 0; k < size; k++) sum += x[start + k];
    for (let k = 0; k < size; k++) centred[start + k] = x[start + k] - sum / size;
  }
  return rmsNorm(centred, size, eps, weight, bias);
}

const RMS_EPS = 2 ** -23; // what float32 adds to a mean square if the config says 0

// The error function, to 1.2e-7 (Abramowitz & Stegun 1964, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const powers = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
  const sum = powers.reduceRight((rest, factor) => (rest + factor) * t, 0);
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const ACTIVATION = {
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  quick_gelu: (x) => x * sigmoid(1.702 * x),
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
  alibi: () => () => true,
};

// The predicate of a setting such as local_global:64,4, limited to a window, if there is one.
function predicate(spec, window) {
  const [name, numbers] = spec.split(":");
  const visible = VISIBLE[name](...(numbers ?? "").split(",").map(Number));
  return window ? (i, j) => j > i - window && visible(i, j) : visible;
}

// ---- Attention

// The row of a causal half, in which row i has i + 1 weights, begins here.
const start = (i) => (i * (i + 1)) / 2;

function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  let sum = 0;
  for (let k = 0; k < scores.length; k++) sum += scores[k] = Math.exp(scores[k] - largest);
  for (let k = 0; k < scores.length; k++) scores[k] /= sum;
  return scores;
}

// What a head's weights may be replaced by: shares of the scores (i + 1 of them) of query i.
const REPLACED = {
  uniform: (scores) => softmax(scores.map((score) => (score === -Infinity ? score : 0))),
  previous: (scores) => scores.map((_, j) => Number(j === Math.max(0, scores.length - 2))),
};

class GPT {
  // config: that of model.py. sizes: [[name, number of weights]]; weights: all of them, one after
  // the other, as base64 of float16. rope: {frequency: of each pair, size: of the rotated vectors}.
  constructor({ config, sizes, weights, rope }) {
    this.config = config;
    this.rope = rope;
    this.H = config.n_head;
    this.G = config.n_kv_head || config.n_head;
    this.D = config.head_size || config.n_embd / config.n_head;
    const all = fromHalf(new Uint16Array(bytes(weights).buffer));
    this.weights = {};
    let end = 0;
    for (const [name, size] of sizes) this.weights[name] = all.subarray(end, (end += size));
    this.layers = Array.from({ length: config.n_layer }, (_, n) => this.layer(n));
  }

  // What model.py's Block decides when it is made.
  layer(n) {
    const { config } = this;
    const letter = (pattern) => pattern[n % pattern.length];
    const short = letter(config.window_pattern) === "S" && config.window < config.block_size;
    return {
      name: `transformer.h.${n}`,
      rotates: config.position === "rope" && letter(config.rope_pattern) === "R",
      visible: predicate(config.visible, short ? config.window : 0),
    };
  }

  // By name; only the outputs from first on, before last, if these are given.
  linear(x, n, name, first = 0, last = undefined) {
    const weight = this.weights[`${name}.weight`], size = x.length / n;
    const rows = weight.subarray(first * size, last && last * size);
    return linear(x, n, rows, this.weights[`${name}.bias`]?.subarray(first, last));
  }

  norm(x, name) {
    const { norm, n_embd, norm_eps } = this.config;
    const [weight, bias] = [this.weights[`${name}.weight`], this.weights[`${name}.bias`]];
    if (norm === "layernorm") return layerNorm(x, n_embd, norm_eps || 1e-5, weight, bias);
    return rmsNorm(x, n_embd, norm_eps || RMS_EPS, weight);
  }

  // Queries or keys (n, heads * D): of each head, or of all heads together.
  qkNorm(x, n, name) {
    const { qk_norm, norm_eps } = this.config;
    if (!qk_norm) return x;
    const size = qk_norm === "width" ? x.length / n : this.D;
    return rmsNorm(x, size, norm_eps || RMS_EPS, this.weights[`${name}.weight`]);
  }

  // Turns each pair (p, p + half) of every head of x (n, heads * D), which begins at a position.
  rotate(x, n, position) {
    const { frequency, size } = this.rope;
    const half = frequency.length, width = x.length / n;
    for (let head = 0; head < x.length; head += this.D) {
      const at = position + Math.floor(head / width);
      for (let p = head; p < head + half; p++) {
        const angle = at * frequency[p - head];
        const cos = size * Math.cos(angle), sin = size * Math.sin(angle);
        [x[p], x[p + half]] = [x[p] * cos - x[p + half] * sin, x[p + half] * cos + x[p] * sin];
      }
    }
  }

  // Embeddings of the ids from a position on, with positions if they are added: (n, C).
  embed(ids, from) {
    const { n_embd: C, position } = this.config;
    const wte = this.weights["transformer.wte.weight"];
    const wpe = this.weights["transformer.wpe.weight"];
    const x = new Float32Array((ids.length - from) * C);
    for (let t = from; t < ids.length; t++)
      for (let c = 0; c < C; c++) {
        let value = wte[ids[t] * C + c];
        if (position === "learned") value += wpe[t * C + c];
        if (position === "sinusoidal") {
          const angle = t * 10000 ** (-(c - (c % 2)) / C);
          value += c % 2 ? Math.cos(angle) : Math.sin(angle);
        }
        x[(t - from) * C + c] = value;
      }
    return x;
  }

  // x (n, C), the last n of T tokens -> (n, C). past: {k, v, maps} of this layer, to be filled from
  // row T - n on. changes: what heads do instead.
  attention(x, n, layer, { k, v, maps }, changes) {
    const { H, G, D } = this, name = `${layer.name}.attn`;
    const T = k.length / (G * D), from = T - n;
    const project = (first, last) => this.linear(x, n, `${name}.c_attn`, first * D, last * D);
    const q = this.qkNorm(project(0, H), n, `${name}.qk_norm.q`);
    const newK = this.qkNorm(project(H, H + G), n, `${name}.qk_norm.k`);
    if (layer.rotates) for (const part of [q, newK]) this.rotate(part, n, from);
    k.set(newK, from * G * D);
    v.set(project(H + G, H + 2 * G), from * G * D);

    const y = new Float32Array(n * H * D);
    for (let h = 0; h < H; h++) {
      if (changes[h] === "off") continue; // its part of y stays 0
      const group = Math.floor(h / (H / G)) * D;
      for (let i = from; i < T; i++) {
        const weights = maps[h].subarray(start(i), start(i + 1));
        weights.set(this.weigh(q, (i - from) * H * D + h * D, k, group, i, h, layer, changes[h]));
        for (let j = 0; j <= i; j++)
          for (let d = 0; weights[j] && d < D; d++)
            y[(i - from) * H * D + h * D + d] += weights[j] * v[j * G * D + group + d];
      }
    }
    return this.linear(y, n, `${name}.c_proj`);
  }

  // The weights of query i, whose features begin at `at`, on the keys of a group: (i + 1).
  weigh(q, at, k, group, i, h, { visible }, change) {
    const { H, G, D, config } = this;
    const slope = config.visible.startsWith("alibi") ? 2 ** ((-8 * (h + 1)) / H) : 0;
    const scores = new Float32Array(i + 1).fill(-Infinity);
    for (let j = 0; j <= i; j++) {
      if (!visible(i, j)) continue;
      let dot = 0;
      for (let d = 0; d < D; d++) dot += q[at + d] * k[j * G * D + group + d];
      scores[j] = dot / (config.score === "scaled_dot" ? Math.sqrt(D) : 1) - slope * (i - j);
    }
    return (REPLACED[change] ?? softmax)(scores);
  }

  // Each position by itself: (n, C) -> (n, C).
  mlp(x, n, layer) {
    const name = `${layer.name}.mlp`, { mlp } = this.config;
    const gated = mlp === "swiglu";
    const size = this.weights[`${name}.c_proj.weight`].length / this.config.n_embd;
    const gate = this.linear(x, n, `${name}.c_fc`, 0, size).map(ACTIVATION[gated ? "silu" : mlp]);
    const up = gated ? this.linear(x, n, `${name}.c_fc`, size) : null;
    return this.linear(up ? gate.map((g, k) => g * up[k]) : gate, n, `${name}.c_proj`);
  }

  // What the model makes of token ids: {logits: (T, vocab_size), layers: [{k, v, maps}]}, where
  // maps[head] is the causal half of its weights. changes: {"layer.head": off, uniform or previous,
  // "layer.mlp": off}. past: an earlier result; what it has of the same beginning is kept.
  read(ids, changes = {}, past = null) {
    const { config, H, G, D } = this, T = ids.length;
    const reused = past && JSON.stringify(past.changes) === JSON.stringify(changes);
    let from = 0;
    while (reused && from < T - 1 && ids[from] === past.ids[from]) from++;
    const grown = (old, size, kept) => {
      const all = new Float32Array(size);
      if (reused) all.set(old.subarray(0, kept));
      return all;
    };
    const kv = (old) => grown(old, T * G * D, from * G * D);
    const n = T - from;
    const add = (x, y) => x.map((value, k) => value + y[k]);
    let x = this.embed(ids, from);
    const layers = this.layers.map((layer, l) => {
      const old = past?.layers[l];
      const maps = Array.from({ length: H }, (_, h) => grown(old?.maps[h], start(T), start(from)));
      const memory = { k: kv(old?.k), v: kv(old?.v), maps };
      const replaced = maps.map((_, h) => changes[`${l}.${h}`]);
      const attend = (x) => this.attention(x, n, layer, memory, replaced);
      const think = (x) => (changes[`${l}.mlp`] ? x.map(() => 0) : this.mlp(x, n, layer));
      const ln = (x, part) => this.norm(x, `${layer.name}.${part}`);
      const after = config.norm_after;
      x = add(x, after ? ln(attend(x), "ln_1") : attend(ln(x, "ln_1")));
      x = add(x, after ? ln(think(x), "ln_2") : think(ln(x, "ln_2")));
      return memory;
    });
    const head = config.tie_weights ? "transformer.wte" : "lm_head";
    const V = config.vocab_size, logits = grown(past?.logits, T * V, from * V);
    logits.set(this.linear(this.norm(x, "transformer.ln_f"), n, head), from * V);
    return { ids: [...ids], changes: { ...changes }, layers, logits };
  }

  // Where the context of a text of T tokens begins: a full one keeps its last half.
  contextStart(T) {
    const size = this.config.block_size, hop = size + 1 - Math.max(1, Math.floor(size / 2));
    return hop * Math.ceil(Math.max(0, T - size) / hop);
  }
}

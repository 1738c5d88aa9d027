// What the page shows of a text: from data that Python has written, or from the model in the page.
// A reading has labels, breaks, directions, direction, losses, entropy and distance, as in
// tools/visualize.py, map(layer, head) and rollout(layer), the causal half of weights, row after
// row, and next(token) and came(token): what is expected, and which of it came.
"use strict";

const CANDIDATES = 10;

function readingOfData() {
  const weights = (source) => Float32Array.from(bytes(source), (byte) => byte / 255);
  return {
    ...data,
    map: once((layer, head) => weights(data.maps[layer][head])),
    rollout: once((layer) => weights(data.rollout[layer])),
    next: (token) => data.next[token],
    came: (token) => data.came[token],
  };
}

// result: what the GPT read; intact: the reading without its changes, if it has any. sampling() ->
// {temperature, topK} of the moment.
function readingOfModel(gpt, tokenizer, result, sampling, intact) {
  const { ids, layers, logits } = result;
  const V = gpt.config.vocab_size;
  const row = (token) => logits.subarray(token * V, (token + 1) * V);
  const pieces = ids.map((id) => tokenizer.bytes(id));
  const labels = labelsOf(pieces);
  const losses = ids.map((id, n) => (n ? -Math.log(softmax(row(n - 1).slice())[id]) : null));
  const map = (layer, head) => layers[layer].maps[head];
  const ofAll = (measure) => layers.map(({ maps }) => maps.map(measure));
  const probabilities = (token) => sharpened(row(token), sampling());
  return {
    ids, labels, losses, map, probabilities, intact,
    breaks: pieces.map((piece) => piece.includes("\n")),
    ...directionsOf(labels),
    loss: sum(losses) / Math.max(1, losses.length - 1),
    entropy: ofAll((half) => -sum(half.map((w) => (w ? w * Math.log2(w) : 0))) / ids.length),
    distance: ofAll((half) => distance(half, ids.length)),
    rollout: once((layer) => rollout(layers, ids.length, layer)),
    next(token) {
      const all = probabilities(token), before = intact?.probabilities(token);
      return best(all.subarray(0, tokenizer.tokens.length), CANDIDATES)
        .map((id) => [tokenizer.label(id), all[id], id, before?.[id]]);
    },
    came(token) { return this.next(token).findIndex(([, , id]) => id === ids[token + 1]); },
  };
}

function best(values, count) {
  const order = Array.from(values.keys());
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

// Probabilities of scores at a temperature, of which the topK best keep theirs (0: all).
function sharpened(scores, { temperature, topK }) {
  const all = scores.map((score) => score / temperature);
  if (topK) {
    const least = [...all].sort((a, b) => b - a)[Math.min(topK, all.length) - 1];
    for (let k = 0; k < all.length; k++) if (all[k] < least) all[k] = -Infinity;
  }
  return softmax(all);
}

// How far a query looks back, on average.
function distance(half, T) {
  let total = 0;
  for (let i = 0, k = 0; i < T; i++) for (let j = 0; j <= i; j++) total += half[k++] * (i - j);
  return total / T;
}

// Attention rollout after a layer: half of what a position had, half of what its heads fetch.
function rollout(layers, T, last) {
  let rolled = new Float32Array(start(T));
  for (let i = 0; i < T; i++) rolled[start(i) + i] = 1;
  for (const { maps } of layers.slice(0, last + 1)) {
    const next = rolled.map((weight) => weight / 2);
    for (let i = 0; i < T; i++)
      for (let j = 0; j <= i; j++) {
        const weight = sum(maps.map((half) => half[start(i) + j])) / maps.length / 2;
        for (let k = 0; k <= j; k++) next[start(i) + k] += weight * rolled[start(j) + k];
      }
    rolled = next;
  }
  return rolled;
}

// ---- Labels and directions, as in tools/shared/labels.py

const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥" };
const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

function seen(character) {
  if (/[\p{Mn}\p{Me}]/u.test(character)) return `◌${character}`;
  const point = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return SIGNS[character] ?? (/[\p{C}\p{Z}]/u.test(character) ? `⟨U+${point}⟩` : character);
}

// The character that begins at a byte, or null if none does.
function characterAt(content, at) {
  const byte = content.charCodeAt(at);
  const size = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
  const own = content.slice(at, at + size);
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(fromBytes(own));
  return [...text].length === 1 && toBytes(text) === own ? { text, size, at } : null;
}

// A label for each token, given as its bytes; those of half a character say which half.
function labelsOf(pieces) {
  const content = pieces.join("");
  const owners = []; // the character of each byte
  while (owners.length < content.length) {
    const owner = characterAt(content, owners.length);
    owners.push(...Array(owner?.size ?? 1).fill(owner));
  }
  let end = 0;
  return pieces.map((piece) => {
    let label = "";
    for (let k = end, from = end; k < end + piece.length; from = k) {
      const owner = owners[k];
      while (k < end + piece.length && owners[k] === owner) k++;
      if (owner) label += seen(owner.text) + share(from - owner.at + 1, k - owner.at, owner.size);
      else label += `⟨${[...content.slice(from, k)].map(hex).join(" ")}⟩`;
    }
    end += piece.length;
    return label || "⟨⟩";
  });
}

const hex = (character) => character.charCodeAt(0).toString(16).padStart(2, "0");

function share(first, last, size) {
  if (last - first + 1 === size) return "";
  const part = first === last ? `${first}` : `${first}⁻${last}`;
  return `${part.replace(/\d/g, (n) => " ¹²³⁴"[n])}⁄${" ₁₂₃₄"[size]}`;
}

function directionsOf(labels) {
  const known = labels.map((label) => {
    const [strong] = label.match(/[\p{L}\p{N}]/u) ?? [];
    return strong && (RTL.test(strong) && !/\p{N}/u.test(strong) ? "rtl" : "ltr");
  });
  const count = (way) => known.filter((other) => other === way).length;
  const direction = count("rtl") > count("ltr") ? "rtl" : "ltr";
  const filled = (ways) => {
    let last = direction;
    return ways.map((way) => (last = way ?? last));
  };
  const before = filled(known), after = filled([...known].reverse()).reverse();
  const between = (n) => (before[n] === after[n] ? before[n] : direction);
  return { direction, directions: known.map((way, n) => way ?? between(n)) };
}

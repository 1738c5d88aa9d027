// What the page shows of a text: from data that Python has written, or from the model in the page.
// A reading has ids, labels, breaks and losses; map(layer, head) and rollout(layer), the weights of
// each token; measures(layer, head), its bits and its distance; and next(token) and came(token):
// what is expected, and which of it came.
"use strict";

const CANDIDATES = 10;

// What both have of the bytes of each token, and of map.
function describe(ids, pieces, map) {
  const layerMaps = (layer) => Array.from({ length: data.heads }, (_, head) => map(layer, head));
  const means = (layers) => Array.from({ length: layers }, (_, layer) => mean(layerMaps(layer)));
  return {
    ids, map,
    labels: labelsOf(pieces),
    breaks: pieces.map((piece) => piece.includes("\n")),
    measures: (layer, head) => [entropy, distance].map((measure) =>
      sum(map(layer, head).map(measure)) / ids.length),
    rollout: once((layer) => rollout(means(layer + 1))),
  };
}

function readingOfData() {
  const { ids, pieces, losses, next, maps } = data;
  const map = once((layer, head) => {
    const all = Float32Array.from(fromBytes(atob(maps[layer][head])), (x) => (x / 255) ** 2);
    let end = 0;
    return ids.map((_, i) => all.subarray(end, (end += i + 1)));
  });
  return {
    ...describe(ids, pieces, map), losses,
    next: (token) => next[token].map(([, piece, p]) => [labelsOf([piece])[0], p]),
    came: (token) => next[token].findIndex(([id]) => id === ids[token + 1]),
  };
}

// result: what the GPT read; typed: as Tokenizer.read gives it; intact: the reading without its
// changes, if it has any. sampling() -> {temperature, topK} of the moment.
function readingOfModel(tokenizer, { ids, layers, logits }, typed, sampling, intact) {
  const losses = ids.map((id, n) => (n ? -Math.log(softmax(logits[n - 1])[id]) : null));
  const map = (layer, head) => layers[layer].maps[head];
  const probabilities = (token) => sharpened(logits[token], sampling());
  return {
    ...describe(ids, tokenizer.pieces(ids, typed), map), typed, losses, probabilities, intact,
    loss: sum(losses) / Math.max(1, losses.length - 1),
    next(token) {
      const all = probabilities(token), before = intact?.probabilities(token);
      return best(all.subarray(0, tokenizer.tokens.length), CANDIDATES)
        .map((id) => [tokenizer.label(id), all[id], id, before?.[id]]);
    },
    came(token) { return this.next(token).findIndex(([, , id]) => id === ids[token + 1]); },
  };
}

// Probabilities of scores at a temperature, of which the topK best keep theirs (0: all).
function sharpened(scores, { temperature, topK }) {
  const least = scores.toSorted().at(-topK) ?? -Infinity; // at(-0) is the least of all
  return softmax(scores.map((score) => (score < least ? -Infinity : score / temperature)));
}

// ---- Measures of weights: of a row, in bits and in tokens, and of whole maps
const entropy = (row) => -sum(row.map((weight) => (weight ? weight * Math.log2(weight) : 0)));
const distance = (row) => sum(row.map((weight, j) => weight * (row.length - 1 - j)));

// The share that goes to what followed these two tokens before, where they have been: induction.
function copying(map, ids) {
  const same = (i, j) => j < i && ids[j - 1] === ids[i] && ids[j - 2] === ids[i - 1];
  const follows = (row, i) => row.filter((_, j) => same(i, j));
  const shares = map.map(follows).filter((found) => found.length).map(sum);
  return sum(shares) / shares.length || 0;
}

function mean(maps) {
  const at = (i, j) => sum(maps.map((map) => map[i][j])) / maps.length;
  return maps[0].map((row, i) => row.map((_, j) => at(i, j)));
}

// Attention rollout: a layer passes on half of what a position had, half of what its heads fetch.
function rollout(means) {
  const before = means[0].map((row, i) => row.map((_, j) => Number(i === j)));
  return means.reduce((rolled, map) => map.map((row, i) => {
    const next = rolled[i].map((had) => had / 2);
    row.forEach((weight, j) => rolled[j].forEach((had, k) => { next[k] += (weight * had) / 2; }));
    return next;
  }), before);
}

// ---- Labels: a character that several tokens share is shown whole in each, with the bytes that
// this one has: 😀¹⁻²⁄₄ are the first two of four. Bytes of no character are shown as ⟨f0 9f⟩; ⟨⟩
// has none.
const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥" };
const UTF8 = /[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[^]/g;

function seen(character) {
  if (/[\p{Mn}\p{Me}]/u.test(character)) return `◌${character}`;
  const point = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return SIGNS[character] ?? (/[\p{C}\p{Z}]/u.test(character) ? `⟨U+${point}⟩` : character);
}

// The character of which these are the bytes, or null.
const character = once((own) => {
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(fromBytes(own));
  return toBytes(text) === own ? text : null;
});

// A label for each token, given as its bytes; those of half a character say which half.
function labelsOf(pieces) {
  const labels = pieces.map(() => "");
  const owner = pieces.flatMap((piece, n) => Array(piece.length).fill(n)); // of each byte
  for (const { 0: own, index } of pieces.join("").matchAll(UTF8)) {
    const text = character(own), tokens = owner.slice(index, index + own.length);
    for (const n of new Set(tokens)) {
      const first = tokens.indexOf(n), end = tokens.lastIndexOf(n) + 1;
      labels[n] += text ? seen(text) + share(first + 1, end, own.length)
        : `⟨${[...own.slice(first, end)].map(hex).join(" ")}⟩`;
    }
  }
  return labels.map((label) => label.replaceAll("⟩⟨", " ") || "⟨⟩");
}

const hex = (character) => character.charCodeAt(0).toString(16).padStart(2, "0");

function share(first, last, size) {
  if (last - first + 1 === size) return "";
  const part = first === last ? `${first}` : `${first}⁻${last}`;
  return `${part.replace(/\d/g, (n) => " ¹²³⁴"[n])}⁄${" ₁₂₃₄"[size]}`;
}

// The direction of most labels with letters: the first may be a mark, or half a character.
function directionOf(labels) {
  const RTL = /[\p{sc=Hebr}\p{sc=Arab}\p{sc=Syrc}\p{sc=Thaa}\p{sc=Nkoo}]/u;
  const all = labels.filter((label) => /\p{L}/u.test(label));
  return all.filter((label) => RTL.test(label)).length > all.length / 2 ? "rtl" : "ltr";
}

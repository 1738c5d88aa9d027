// Many texts on which a change of the model is measured: one text alone may be an exception.
"use strict";

// An id, by its probability; chance: where in their sum.
function draw(probabilities, chance = Math.random()) {
  let left = chance * sum(probabilities);
  return Math.max(0, probabilities.findIndex((p) => (left -= p) < 0));
}

class ManyTexts {
  // A model of letters gets strings of random ones, each twice: only what copies can foretell the
  // second half. Another one writes the texts itself, beginning with the ids of start.
  constructor(gpt, { kind, ids, tokens }, start) {
    let seed = 1; // so that the texts are the same each time
    const chance = () => (seed = (1664525 * seed + 1013904223) % 2 ** 32) / 2 ** 32;
    const letters = [..."abcdefghijklmnopqrstuvwxyz"].map((letter) => ids.get(letter));
    const half = Math.min(24, Math.floor(gpt.config.block_size / 2));
    const random = ["byte", "char"].includes(kind) && !letters.includes(undefined);
    const string = () => Array.from({ length: half }, () => letters[Math.floor(26 * chance())]);
    const twice = (string) => [...string, ...string];
    Object.assign(this, { gpt, texts: [], from: random ? half : start.length }); // losses from here
    this.says = random ? `32 strings of ${half} letters, each twice, the loss of the second time`
      : "32 texts that the model has written, the loss";
    this.write = () => {
      const text = random ? twice(string()) : [...start];
      for (let past = null; text.length < 2 * half;) {
        past = gpt.read(text, {}, past);
        text.push(draw(softmax(past.logits.at(-1)).subarray(0, tokens.length), chance()));
      }
      return text;
    };
  }

  loss(ids, changes) {
    const { logits } = this.gpt.read(ids, changes);
    const losses = ids.map((id, n) => (n ? -Math.log(softmax(logits[n - 1])[id]) : 0));
    return sum(losses.slice(this.from)) / (ids.length - this.from);
  }

  // {rise, error}: by how much the loss rises, and two standard errors; null once stopped().
  async measure(changes, stopped) {
    const rises = [];
    for (let n = 0; n < 32; n++) {
      const ids = this.texts[n]?.ids ?? this.write();
      this.texts[n] ??= { ids, loss: this.loss(ids, {}) };
      rises.push(this.loss(ids, changes) - this.texts[n].loss);
      await rest();
      if (stopped()) return null;
    }
    const rise = sum(rises) / 32;
    const spread = Math.sqrt(sum(rises.map((one) => (one - rise) ** 2)) / 31);
    return { rise, error: (2 * spread) / Math.sqrt(32) };
  }
}

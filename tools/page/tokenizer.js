// Text to token ids and back, as engine/text/tokenizer.py does it.
"use strict";

class Tokenizer {
  // kind: byte, char, bpe or words; tokens: the bytes of each; begin: ids before each text;
  // bpe: pattern, merges, special, as tools/shared/live.py describes them.
  constructor(content) {
    Object.assign(this, content);
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    this.ranks = new Map(this.merges?.map((pair, rank) => [pair, rank]));
    const names = Object.keys(this.special ?? {}).filter(Boolean);
    const escaped = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
    this.cut = names.length ? new RegExp(`(${escaped.join("|")})`) : null;
    this.words = once((word) => this.bytePairs(toBytes(word)));
    this.label = once((id) => labelsOf([this.bytes(id)])[0]);
  }

  // The ids of a text, without `begin`; an Error names what the tokenizer lacks.
  encode(text) {
    const parts = this.cut ? text.split(this.cut) : [text];
    return parts.flatMap((part, n) => (n % 2 ? this.special[part] : this.encodePart(part)));
  }

  encodePart(text) {
    if (this.kind === "byte") return [...new TextEncoder().encode(text)];
    if (this.kind === "char") return Array.from(text, (character) => this.lookUp(character));
    if (this.kind === "words")
      return text.split(/\s+/).filter(Boolean).map((word) => this.lookUp(word, " "));
    const words = text.match(new RegExp(this.pattern, "gu")) ?? [];
    return words.flatMap((word) => this.words(word));
  }

  lookUp(text, before = "") {
    const id = this.ids.get(toBytes(before + text)) ?? this.unknown;
    if (id == null) throw new Error(`The model does not know “${text}”.`);
    return id;
  }

  // Merges the neighbours that come first in the list of merges, until none are in it.
  bytePairs(word) {
    if (this.ids.has(word)) return [this.ids.get(word)];
    let parts = [...word];
    for (;;) {
      const ranks = parts.slice(1).map((part, n) => this.ranks.get(`${parts[n]}\u0100${part}`));
      const best = ranks.reduce((a, b) => Math.min(a, b ?? Infinity), Infinity);
      if (best === Infinity) return parts.map((part) => this.ids.get(part));
      const joined = [];
      for (let n = 0; n < parts.length; n++)
        joined.push(ranks[n] === best ? parts[n] + parts[++n] : parts[n]);
      parts = joined;
    }
  }

  bytes(id) {
    return this.tokens[id] ?? ""; // ids that pad a vocabulary have no text
  }

  decode(ids) {
    const text = new TextDecoder().decode(fromBytes(ids.map((id) => this.bytes(id)).join("")));
    return this.kind === "words" ? text.trimStart() : text;
  }
}

// Text to token ids and back, as engine/tokenizer.py does it.
"use strict";

// The byte of each character of the alphabet in which GPT-2's merges are written.
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const itself = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  BYTES.set(String.fromCharCode(itself ? byte : next++), String.fromCharCode(byte));
}
const BETWEEN = "\u0100"; // the two of a merge: no byte

class Tokenizer {
  // kind: byte, char, bpe or words; tokens: the bytes of each; begin: ids before each text;
  // bpe: pattern, merges, special, as tools/shared/live.py describes them.
  constructor(content) {
    Object.assign(this, content);
    this.pattern = this.pattern && new RegExp(javascript(this.pattern), "gu");
    if (this.kind === "words") this.tokens = this.tokens.map((token) => token.trimStart());
    this.known = this.tokens.filter((word) => /\w/.test(word)).sort();
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    const inBytes = (pair) => Array.from(pair, (own) => BYTES.get(own) ?? BETWEEN).join("");
    this.ranks = new Map(this.merges?.map((pair, rank) => [inBytes(pair), rank]));
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
      return text.split(/\s+/).filter(Boolean).map((word) => this.lookUp(word));
    const words = text.match(this.pattern) ?? [];
    return words.flatMap((word) => this.words(word));
  }

  // A text as people write it: its ids, and typed[n], the word of a token that the model lacks. A
  // model of words is given those in its own spelling; marks that it lacks are left out.
  read(text) {
    if (this.kind !== "words") return { ids: this.encode(text), typed: [] };
    const short = (all, verb) => (this.knows(`${verb}n't`) ? `${verb}n't` : all);
    const whole = this.knows("not") ? text : text.replace(/(\p{L}+) not\b/gu, short);
    const parts = whole.replace(/[’‘]/g, "'")
      .match(/[\p{L}\p{N}]+(['-][\p{L}\p{N}]+)*|[^\s\p{L}\p{N}]/gu) ?? [];
    const words = parts.flatMap((part) => this.spelled(part));
    const ids = words.map((word) => this.lookUp(word));
    return { ids, typed: words.map((word, n) => (ids[n] === this.unknown ? word : undefined)) };
  }

  knows(word) {
    return this.ids.has(toBytes(word)) && this.ids.get(toBytes(word)) !== this.unknown;
  }

  // A word or a mark as the model's words: without its capitals, a short form in full.
  spelled(word) {
    for (const own of [word, word.toLowerCase()]) if (this.knows(own)) return [own];
    if (!/[\p{L}\p{N}]/u.test(word)) return /[.!?…]/.test(word) && this.knows(".") ? ["."] : [];
    const full = FULL.reduce((short, [end, words]) => short.replace(end, words), word);
    return full === word ? [word] : full.split(" ").flatMap((part) => this.spelled(part));
  }

  // The known word that differs in its ending alone, if any: yawned, for yawning.
  nearest(word) {
    const alike = this.known.map((own) => {
      let same = 0;
      while (same < own.length && own[same] === word[same]?.toLowerCase()) same++;
      return same > 3 && Math.max(word.length, own.length) - same < 4 ? same : 0;
    });
    const [near] = best(alike, 1);
    return alike[near] ? this.known[near] : undefined;
  }

  lookUp(text) {
    const id = this.ids.get(toBytes(text)) ?? this.unknown;
    if (id == null) throw new Error(`The model does not know “${text}”.`);
    return id;
  }

  // Merges the neighbours that come first in the list of merges, until none are in it.
  bytePairs(word) {
    if (this.ids.has(word)) return [this.ids.get(word)];
    let parts = [...word];
    for (;;) {
      const ranks = parts.slice(1).map((part, n) => this.ranks.get(parts[n] + BETWEEN + part));
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

  // The bytes of each token of a text, typed as read gives it.
  pieces(ids, typed = []) {
    return ids.map((id, n) => (typed[n] ? toBytes(typed[n]) : this.bytes(id)));
  }

  decode(ids, typed) {
    const between = this.kind === "words" ? " " : "";
    return new TextDecoder().decode(fromBytes(this.pieces(ids, typed).join(between)));
  }
}

// A pattern as JavaScript knows it: without atomic groups and possessive +, and in many browsers
// (?i:...). Nothing follows what is atomic or possessive that would make it give back a character.
const javascript = (pattern) => pattern
  .replace("(?i:[sdmt]|ll|ve|re)", "(?:[sdmtSDMT]|[lL]{2}|[vV][eE]|[rR][eE])")
  .replaceAll("(?>", "(?:").replaceAll("++", "+");

const FULL = [
  [/^can't$/i, "can not"], [/^won't$/i, "will not"], [/n't$/i, " not"], [/'re$/i, " are"],
  [/^(it|he|she|that|there|what|who)'s$/i, "$1 is"], [/-/g, " "],
];

// What the tabs share.
"use strict";

const $ = (selector) => document.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const data = JSON.parse($("#data").textContent);

// An element with attributes and children; text goes in as text, never as HTML.
function make(name, attributes = {}, ...children) {
  const svg = ["g", "circle", "text"].includes(name);
  const space = svg ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Strings of "bytes", in which each character stands for one byte: what atob returns.
const toBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

function fromBytes(characters) {
  const found = new Uint8Array(characters.length);
  for (let k = 0; k < found.length; k++) found[k] = characters.charCodeAt(k);
  return found;
}

// The indices of the largest values, best first.
function best(values, count) {
  const order = Array.from(values.keys());
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

// A function that computes each result once.
function once(compute) {
  const known = new Map();
  return (...key) => {
    const name = key.join();
    if (!known.has(name)) known.set(name, compute(...key));
    return known.get(name);
  };
}

// The page can be used meanwhile.
const rest = () => new Promise((done) => setTimeout(done));

// The colour of a CSS variable of three numbers, as [r, g, b].
const colour = (name) => getComputedStyle(document.documentElement)
  .getPropertyValue(name).trim().split(/\s+/).map(Number);

const isolated = (text) => `\u2068${text}\u2069`; // whatever way it is written
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const number = (x) => (x > 0 && x < 0.005 ? "<0.01" : x.toFixed(2));
const digits = (x) => x.toFixed(2).replace("-", "−").replace(/^−(0\.00)$/, "$1");
const darkness = (weight) => Math.sqrt(weight); // faint weights can be seen

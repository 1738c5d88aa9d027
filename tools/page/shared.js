// What the tabs share.
"use strict";

const $ = (selector) => document.querySelector(selector);
const data = JSON.parse($("#data").textContent);

// An element with attributes and children; text goes in as text, never as HTML.
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "circle", "line", "text", "rect", "image"].includes(name);
  const space = svg ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  element.append(...children);
  return change(element, attributes);
}

// The element with other attributes.
function change(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The bytes of base64.
function bytes(source) {
  const text = atob(source), found = new Uint8Array(text.length);
  for (let k = 0; k < found.length; k++) found[k] = text.charCodeAt(k);
  return found;
}

// Float32s of the bits of float16: a sign, five bits of exponent, ten of fraction.
function fromHalf(halves) {
  const size = Array.from({ length: 32 }, (_, exponent) => 2 ** (Math.max(1, exponent) - 25));
  const found = new Float32Array(halves.length);
  for (let k = 0; k < found.length; k++) {
    const exponent = (halves[k] >> 10) & 31;
    const fraction = (halves[k] & 1023) + (exponent ? 1024 : 0);
    found[k] = (halves[k] & 0x8000 ? -1 : 1) * fraction * size[exponent];
  }
  return found;
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

// The colour of a CSS variable of three numbers, as [r, g, b].
const colour = (name) => getComputedStyle(document.documentElement)
  .getPropertyValue(name).trim().split(/\s+/).map(Number);

// Calls back when the colours change.
function onTheme(paint) {
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", paint);
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const number = (x) => (x > 0 && x < 0.005 ? "<0.01" : x.toFixed(2));
const darkness = (weight) => Math.sqrt(weight); // faint weights can be seen

// Tabs: click, or arrow keys.
const tabs = [...document.querySelectorAll('[role="tab"]')];
for (const tab of tabs) tab.hidden &&= !data.alignments;

function show(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", other === tab);
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  dispatchEvent(new CustomEvent("shown", { detail: tab.getAttribute("aria-controls") }));
}

tabs.forEach((tab) => {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = tabs.filter((other) => !other.hidden);
    const next = open[(open.indexOf(tab) + step + open.length) % open.length];
    next.focus();
    show(next);
  });
});

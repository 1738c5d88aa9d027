// What the three tabs share.
"use strict";

const $ = (selector) => document.querySelector(selector);
const data = JSON.parse($("#data").textContent);

// An element with attributes and children; text goes in as text, never as HTML.
function make(name, attributes = {}, ...children) {
  const svg = ["g", "circle", "line", "path", "text", "rect"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The colour of a CSS variable of three numbers, as [r, g, b].
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);

const number = (x) => (x > 0 && x < 0.005 ? "<0.01" : x.toFixed(2));
const darkness = (weight) => Math.sqrt(weight); // faint weights can be seen

// Tabs: click, or arrow keys.
const tabs = [...document.querySelectorAll('[role="tab"]')];

function show(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", other === tab);
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  dispatchEvent(new CustomEvent("shown", { detail: tab.getAttribute("aria-controls") }));
}

tabs.forEach((tab, n) => {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(n + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
});

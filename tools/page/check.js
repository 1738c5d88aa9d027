// Fails if the model of a page computes other logits than PyTorch, which are added to the page's
// data: node check.js < data.json
"use strict";
const { readFileSync } = require("fs");
const content = readFileSync(0, "utf8");
globalThis.document = { querySelector: () => ({ textContent: content }) };
const [shared, model] = ["shared", "model"].map((name) => readFileSync(`${__dirname}/${name}.js`));
process.exitCode = 1; // also if an error of the model ends it
try {
  const { logits } = new Function(`${shared} ${model} return new GPT(data.live).read(data.ids)`)();
  const near = (row, n) => row.every((x, id) => Math.abs(logits[n][id] - x) <= 1e-3);
  if (JSON.parse(content).logits.every(near)) process.exitCode = 0;
} catch {}

// Two sentences: a word lights those of the other one, each by the weight between the two.
"use strict";

const buttons = {};
for (const side of ["source", "target"]) {
  buttons[side] = data[side].map((word, n) => {
    const button = make("button", { "aria-pressed": false }, word);
    for (const event of ["pointerenter", "focus", "click"])
      button.addEventListener(event, () => light(side, n));
    return button;
  });
  $("#" + side).append(...buttons[side]);
}

function light(side, n) {
  const other = side === "source" ? "target" : "source";
  const weight = (m) => (side === "target" ? data.weights[n][m] : data.weights[m][n]);
  const weights = data[other].map((_, m) => weight(m));
  buttons[side].forEach((button, m) => {
    button.setAttribute("aria-pressed", m === n);
    paint(button, 0);
  });
  buttons[other].forEach((button, m) => {
    button.setAttribute("aria-pressed", false);
    paint(button, darkness(weights[m]));
  });
  const best = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  const looks = best.map((m) => `${data[other][m]} ${number(weights[m])}`);
  $("#reading").textContent = `${data[side][n]}: ${looks.join(", ")}`;
}

function paint(button, share) {
  button.style.setProperty("--share", share);
  button.classList.toggle("strong", share > colour("--strong")[0]);
}

$("#model").textContent = data.model;
light("target", 0);

// Two sentences: a word lights those of the other one, each by the weight between the two.
"use strict";
if (data.alignments) {
  let pair, buttons; // {source, target, weights}; the words of both sides

  function open(n) {
    pair = data.alignments[n];
    buttons = { source: words("source"), target: words("target") };
    light("target", 0);
  }

  function words(side) {
    const found = pair[side].map((word, n) => {
      const button = make("button", {}, word);
      for (const event of ["pointerenter", "focus", "click"])
        button.addEventListener(event, () => light(side, n));
      return button;
    });
    $(`#${side}`).replaceChildren(...found);
    return found;
  }

  function light(side, n) {
    const other = side === "source" ? "target" : "source";
    const weight = (m) => (side === "target" ? pair.weights[n][m] : pair.weights[m][n]);
    const weights = pair[other].map((_, m) => weight(m));
    buttons[side].forEach((button, m) => paint(button, m === n, 0));
    buttons[other].forEach((button, m) => paint(button, false, darkness(weights[m])));
    const looks = best(weights, 3).map((m) => `${pair[other][m]} ${number(weights[m])}`);
    $("#reading").textContent = `${pair[side][n]}: ${looks.join(", ")}`;
  }

  function paint(button, pressed, share) {
    button.setAttribute("aria-pressed", pressed);
    button.style.setProperty("--share", share);
  }

  data.alignments.forEach(({ source }, n) => {
    const text = source.slice(0, -1).join(" ");
    $("#which").append(make("option", { value: n }, text));
  });
  $("#which").addEventListener("change", () => open(Number($("#which").value)));
  $("#which").closest(".controls").hidden = data.alignments.length === 1;
  if ($("#tab-translator")) $("#tab-translator").parentElement.hidden = false;
  else $("#model").textContent = data.model;
  open(0);
}

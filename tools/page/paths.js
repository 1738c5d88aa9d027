// The third tab: which scores each path makes, and which it holds, step by step.
"use strict";
{
  const T = 12, D = 8, TILE = 4, W = 3, BYTES = 4;
  const all = [...Array(T).keys()], tiles = all.filter((n) => n % TILE === 0);
  const row = (i, keys) => keys.map((j) => [i, j]);
  const past = (i) => all.slice(0, i + 1);
  const keys = (count) => `${count} key${count === 1 ? "" : "s"}`;

  // A step: the scores that are made in it (pairs of query and key), what it holds besides
  // (numbers), how many keys and values are cached by then, and what happens, in words. A step that
  // makes none goes on holding those of the one before; blind: no mask as yet.
  const PATHS = {
    naive: all.map((i) => ({
      made: row(i, past(i)),
      says: `Query ${i + 1} is compared with ${keys(i + 1)}; its scores are let go.`,
    })),
    masked_fill: [
      {
        made: all.flatMap((i) => row(i, all)), blind: true,
        says: "All pairs are compared, the future too.",
      },
      { says: "The mask writes −inf over the future: those were made in vain." },
      { says: "Softmax of each row. All weights are held." },
      { says: "Weights times values: the output." },
    ],
    tiled: tiles.flatMap((a) => tiles.filter((b) => b <= a).map((b) => ({
      made: all.slice(a, a + TILE).flatMap((i) => row(i, all.slice(b, b + TILE))), besides: 2 * T,
      says: `Queries ${a + 1} to ${a + TILE} meet keys ${b + 1} to ${b + TILE}; ` +
        "what they had is rescaled. Tiles of the future are skipped.",
    }))),
    "cached decode": all.map((i) => ({
      made: row(i, past(i)), cached: i + 1,
      says: `Token ${i + 1} arrives: one row of scores; its key and value join ${i} earlier ones.`,
    })),
    window: all.map((i) => ({
      made: row(i, past(i).slice(-W)),
      says: `Query ${i + 1} is compared with ${keys(Math.min(W, i + 1))}.`,
    })),
  };

  const scrub = $("#scrub");
  scrub.max = Math.max(...Object.values(PATHS).map((steps) => steps.length));

  const panels = $$("[data-path]").map((section) => {
    const cells = (count) => Array.from({ length: count }, () => make("i"));
    const [cached, scores] = [cells(T), cells(T * T)];
    section.querySelector(".board").append(...cached, ...scores);
    return { section, cached, scores, path: PATHS[section.dataset.path] };
  });

  function paintPanel({ section, cached, scores, path }, step) {
    const steps = path.slice(0, step), now = steps.at(-1);
    const made = steps.flatMap((one) => one.made ?? []);
    const held = steps.findLast((one) => one.made).made;
    const bytes = BYTES * (held.length + (now.besides ?? 0) + 2 * D * (now.cached ?? T));
    for (const cell of scores) cell.className = "";
    for (const pair of made) {
      const [i, j] = pair, state = held.includes(pair) ? "held" : "made";
      scores[i * T + j].className = j > i && !now.blind ? "waste" : state;
    }
    cached.forEach((cell, j) => { cell.className = j < now.cached ? "cached" : ""; });
    section.querySelector(".says").textContent = now.says + (step > path.length ? " Done." : "");
    const figures = { made: made.length, held: held.length, bytes };
    Object.assign(section.dataset, figures);
    for (const [name, figure] of Object.entries(figures))
      section.querySelector(`dd.${name}`).textContent = figure.toLocaleString("en");
  }

  function paint() {
    $("#step-value").textContent = `${scrub.value} of ${scrub.max}`;
    for (const panel of panels) paintPanel(panel, Number(scrub.value));
  }

  scrub.addEventListener("input", paint);
  paint();
}

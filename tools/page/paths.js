// The third tab: which scores each path makes, and which it holds, step by step.
"use strict";
{
  const T = 12, D = 8, TILE = 4, W = 3, BYTES = 4;
  const CELL = 26, TOP = 14; // pixels: a square, and the strip above for what is cached
  const all = Array.from({ length: T }, (_, n) => n);
  const row = (i, keys) => keys.map((j) => [i, j]);
  const past = (i) => all.slice(0, i + 1);
  const tiles = all.filter((n) => n % TILE === 0);
  const plural = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

  // A step: the scores that are made in it (pairs of query and key), what it holds besides
  // (numbers), how many keys and values there are by then (all, unless it says so), and what
  // happens, in words. A step that makes none goes on holding those of the one before; blind: no
  // mask as yet. large: the scores and the like that are held with T tokens. moved: the numbers
  // that a GPU reads from its memory and writes to it for T tokens, where only what is held at a
  // time stays in its cores.
  const PATHS = [
    {
      name: "naive", about: "One query at a time, only the keys that it may see.",
      steps: all.map((i) => ({
        made: row(i, past(i)),
        says: `Query ${i + 1} is compared with ${plural(i + 1, "key")}; its scores are let go.`,
      })),
      large: (T) => T,
      moved: (T, D) => T * (T + 1) * D + 2 * T * D,
    },
    {
      name: "masked_fill", about: "All scores at once, then −inf where nobody may look.",
      steps: [
        {
          made: all.flatMap((i) => row(i, all)), blind: true,
          says: "All pairs are compared, the future too.",
        },
        { says: "The mask writes −inf over the future: those were made in vain." },
        { says: "Softmax of each row. All weights are held." },
        { says: "Weights times values: the output." },
      ],
      large: (T) => T * T,
      moved: (T, D) => 4 * T * T + 4 * T * D,
    },
    {
      name: "tiled",
      about: "FlashAttention: tile by tile, a running maximum and sum for each query.",
      steps: tiles.flatMap((a) => tiles.filter((b) => b <= a).map((b) => ({
        made: all.slice(a, a + TILE).flatMap((i) => row(i, all.slice(b, b + TILE))), besides: 2 * T,
        says: `Queries ${a + 1} to ${a + TILE} meet keys ${b + 1} to ${b + TILE}; ` +
          "what they had is rescaled. Tiles of the future are skipped.",
      }))),
      large: (T) => 256 * 256 + 2 * T,
      moved: (T, D) => T * (T / 256 + 1) * D + 2 * T * D,
    },
    {
      name: "cached decode",
      about: "One new token at a time: one row of scores. Without the cache, each would make all " +
        "rows again.",
      steps: all.map((i) => ({
        made: row(i, past(i)), cached: i + 1,
        says: `Token ${i + 1} arrives: one row of scores; its key and value join ` +
          `${plural(i, "earlier one")}.`,
      })),
      large: (T) => T,
      moved: (T, D) => T * (T + 1) * D + 4 * T * D,
    },
    {
      name: "window",
      about: "Each query sees the last few keys only: the cost per token stops growing.",
      steps: all.map((i) => ({
        made: row(i, past(i).slice(-W)),
        says: `Query ${i + 1} is compared with ${plural(Math.min(W, i + 1), "key")}.`,
      })),
      large: () => 256,
      moved: (T, D) => 256 * (2 * T - 255) * D + 2 * T * D,
    },
  ];

  // What is on the board after each step: the state of each square, and the counts.
  function frames({ steps }) {
    const board = new Map();
    let made = 0, held = [];
    return steps.map((step) => {
      if (step.made) {
        held.forEach((key) => { if (board.get(key) === "held") board.set(key, "made"); });
        held = step.made.map(([i, j]) => i * T + j);
        made += held.length;
      }
      const hides = (key) => key % T > Math.floor(key / T);
      held.forEach((key) => board.set(key, hides(key) && !step.blind ? "waste" : "held"));
      const numbers = held.length + (step.besides ?? 0) + 2 * D * (step.cached ?? T);
      return {
        board: new Map(board), made, held: held.length, bytes: BYTES * numbers,
        cached: step.cached ?? 0, says: step.says,
      };
    });
  }

  function size(bytes) {
    const power = bytes < 1e3 ? 0 : bytes < 1e6 ? 1 : bytes < 1e9 ? 2 : 3;
    const value = bytes / 1000 ** power;
    return `${value.toFixed(power && value < 10 ? 1 : 0)} ${["B", "kB", "MB", "GB"][power]}`;
  }

  const COUNTS = [
    "scores made", "scores held", "bytes held", "with 8,192 tokens", "read and written then",
  ];
  const NOTHING = { board: new Map(), made: 0, held: 0, bytes: 0, cached: 0, says: "Nothing yet." };
  const panels = PATHS.map((path) => {
    const canvas = make("canvas", { width: CELL * T, height: CELL * T + TOP, role: "img" });
    const says = make("p"), counts = {};
    const list = make("dl");
    for (const name of COUNTS)
      list.append(make("dt", {}, name), counts[name] = make("dd"));
    counts["with 8,192 tokens"].textContent = size(BYTES * (path.large(8192) + 2 * 8192 * 64));
    counts["read and written then"].textContent = size(BYTES * path.moved(8192, 64));
    const names = { class: "panel", "data-path": path.name, "aria-label": path.name };
    const section = make("section", names,
      make("h2", {}, path.name), make("p", {}, path.about), canvas, says, list);
    $("#panels").append(section);
    return { section, canvas, says, counts, frames: frames(path) };
  });
  const last = Math.max(...panels.map((panel) => panel.frames.length));

  function paintPanel({ section, canvas, says, counts, frames }, step) {
    const frame = step ? frames[Math.min(step, frames.length) - 1] : NOTHING;
    const context = canvas.getContext("2d"), gap = 2, side = CELL - 2 * gap;
    const rgb = (name, alpha = 1) => `rgb(${colour(name).join(" ")} / ${alpha})`;
    const fills = { held: rgb("--weight"), made: rgb("--weight", 0.3), waste: rgb("--loss", 0.18) };
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const i of all)
      for (const j of all) {
        const state = frame.board.get(i * T + j), [x, y] = [j * CELL + gap, TOP + i * CELL + gap];
        context.fillStyle = fills[state] ?? rgb("--line", j <= i ? 0.55 : 0.2);
        context.beginPath();
        context.roundRect(x, y, side, side, 4);
        context.fill();
        if (state !== "waste") continue;
        // Struck out, so that it does not take the colour to see it.
        context.strokeStyle = rgb("--loss");
        context.beginPath();
        context.moveTo(x + 5, y + side - 5);
        context.lineTo(x + side - 5, y + 5);
        context.stroke();
      }
    context.fillStyle = rgb("--loss", 0.5);
    for (let j = 0; j < frame.cached; j++) context.fillRect(j * CELL + gap, 2, side, TOP - 5);
    says.textContent = frame.says + (step > frames.length ? " Done." : "");
    counts["scores made"].textContent = frame.made;
    counts["scores held"].textContent = frame.held;
    counts["bytes held"].textContent = size(frame.bytes);
    Object.assign(section.dataset, { made: frame.made, held: frame.held, bytes: frame.bytes });
    canvas.setAttribute("aria-label", `${frame.made} scores made, ${frame.held} held`);
  }

  // ---- Play, pause, step, scrub
  const scrub = $("#scrub"), play = $("#play");
  scrub.max = last;
  let clock = null;

  function go(step) {
    scrub.value = Math.min(last, Math.max(0, step));
    $("#step-value").textContent = `step ${scrub.value} of ${last}`;
    for (const panel of panels) paintPanel(panel, Number(scrub.value));
  }

  function stop() {
    clearInterval(clock);
    clock = null;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", false);
  }

  function start() {
    if (Number(scrub.value) === last) go(0);
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", true);
    const step = () => (Number(scrub.value) < last ? go(Number(scrub.value) + 1) : stop());
    clock = setInterval(step, 800);
  }

  play.addEventListener("click", () => (clock ? stop() : start()));
  for (const [id, step] of [["#step-back", -1], ["#step-on", 1]])
    $(id).addEventListener("click", () => { stop(); go(Number(scrub.value) + step); });
  scrub.addEventListener("input", () => { stop(); go(Number(scrub.value)); });
  onTheme(() => go(Number(scrub.value)));

  // It begins to move when it is first looked at, unless the reader wants no motion: then it shows
  // the end.
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  go(still ? last : 0);
  addEventListener("shown", ({ detail }) => {
    if (detail !== "paths") stop();
    else if (!still && Number(scrub.value) === 0) start();
  });
}

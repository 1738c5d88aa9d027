// The first tab: a text, its tokens, and what each head looks at. Layers, heads and tokens count
// from 0 here, and from 1 in words. view is what others use of it.
"use strict";
const view = (() => {
  const { layers: L, heads: H } = data;
  const ALL = -1, ROLLOUT = -2; // in place of the number of a head; ALL also of a layer
  const state = { token: 0, layer: 0, head: 0, ahead: false, held: false };
  const listeners = []; // called after each choice
  let reading, T, average, strongest;

  // ---- Weights: the causal half, row after row
  const range = (n, count) => (n === ALL ? Array.from({ length: count }, (_, k) => k) : [n]);

  function averageOf(layer, head) {
    const pairs = range(layer, L).flatMap((l) => range(head, H).map((h) => [l, h]));
    const sum = new Float32Array(start(T));
    for (const [l, h] of pairs) {
      const half = reading.map(l, h);
      for (let k = 0; k < sum.length; k++) sum[k] += half[k] / pairs.length;
    }
    return sum;
  }

  function chosen() {
    const { layer, head } = state;
    if (head === ROLLOUT) return reading.rollout(layer === ALL ? L - 1 : layer);
    return layer === ALL || head === ALL ? average(layer, head) : reading.map(layer, head);
  }

  // How much token i looks at each token, or how much each looks at it.
  function weightsOf(i, half, ahead) {
    const found = new Float64Array(T);
    if (ahead) for (let j = i; j < T; j++) found[j] = half[start(j) + i];
    else found.set(half.subarray(start(i), start(i + 1)));
    return found;
  }

  // ---- Tokens
  const box = $("#tokens");
  let tokens = [], shown, marked, strong;

  function makeToken(label, n) {
    const loss = reading.losses[n];
    const said = loss === null ? "" : `, loss ${loss.toFixed(2)}`;
    const token = make("span", {
      role: "option", id: `token-${n}`, "data-n": n, tabindex: -1, "aria-selected": false,
      "aria-label": `${n + 1}: ${label}${said}`,
    }, label);
    const share = Math.min(1, (loss ?? 0) / strongest);
    token.style.setProperty("--loss-share", share.toFixed(3));
    token.classList.toggle("blank", /^[·⏎⇥]+$/.test(label));
    return token;
  }

  function layTokens() {
    const { labels, directions, breaks } = reading;
    box.replaceChildren();
    box.dir = reading.direction;
    let run = null; // neighbours that are written in the same direction
    tokens = labels.map((label, n) => {
      const token = makeToken(label, n);
      if (run?.dir !== directions[n] || breaks[n - 1])
        run = box.appendChild(make("bdi", { dir: directions[n] }));
      run.append(token);
      if (breaks[n]) box.append(make("br"));
      return token;
    });
    shown = new Float64Array(T).fill(NaN);
    marked = null;
  }

  function paintTokens(weights) {
    for (let n = 0; n < T; n++) {
      if (weights[n] === shown[n]) continue; // touch only what changes
      shown[n] = weights[n];
      tokens[n].style.setProperty("--weight-share", darkness(weights[n]).toFixed(3));
      tokens[n].dataset.weight = weights[n].toFixed(5);
      tokens[n].dataset.reads = weights[n] ? number(weights[n]) : "0";
      // The weight above which dark text on the background could not be read, or light text.
      tokens[n].classList.toggle("strong", weights[n] > strong);
    }
    if (marked) change(marked, { "aria-selected": false, tabindex: -1 });
    marked = change(tokens[state.token], { "aria-selected": true, tabindex: 0 });
    marked.classList.toggle("held", state.held);
    box.dataset.held = state.held;
  }

  // ---- In words
  const quoted = (label) => make("span", {}, "“", make("bdi", {}, label), "”");
  const away = (n) => (n === 0 ? "" : n < 0 ? ` ${-n} back` : ` ${n} later`);

  function whichHead() {
    const all = state.layer === ALL;
    if (state.head === ROLLOUT)
      return `After ${all ? "all layers" : `layer ${state.layer + 1}`}, by attention rollout,`;
    const layer = all ? "On average over all layers" : `In layer ${state.layer + 1}`;
    const head = state.head === ALL ? "on average over its heads" : `head ${state.head + 1}`;
    return `${layer}, ${head},`;
  }

  function paintSentence(weights) {
    const { labels } = reading;
    const looked = [...weights.keys()].filter((n) => weights[n] > 0);
    const most = looked.sort((a, b) => weights[b] - weights[a]).slice(0, 3);
    const parts = [`${whichHead()} `, make("b", {}, quoted(labels[state.token]))];
    const looks = state.ahead ? " is looked at most by " : " looks most at ";
    parts.push(most.length ? looks : state.ahead ? " is looked at by nobody" : " looks at nothing");
    most.forEach((n, k) => {
      if (k) parts.push(k === most.length - 1 ? " and " : ", ");
      if (n === state.token) parts.push("itself");
      else parts.push(quoted(labels[n]), away(n - state.token));
      parts.push(` (${number(weights[n])})`);
    });
    const [label, p] = reading.next(state.token)[0];
    parts.push(". After it, the model expects ", make("b", {}, quoted(label)), ` (${number(p)}).`);
    $("#sentence").replaceChildren(...parts);
  }

  function paintNext() {
    const came = reading.came(state.token);
    const rows = reading.next(state.token).map(([label, p, id, was], n) => {
      const parts = [make("bdi", {}, label), make("i", {}), make("span", {}, number(p))];
      const row = id === undefined ? make("div", {}, ...parts)
        : make("button", { "data-id": id, title: "Go on with it" }, ...parts);
      const item = make("li", { "data-p": p }, row);
      item.style.setProperty("--p", p);
      if (was !== undefined) item.style.setProperty("--was", was);
      item.classList.toggle("came", n === came);
      return item;
    });
    $("#next").replaceChildren(...rows);
    const loss = reading.losses[state.token + 1];
    const goesOn = () => ["The text goes on with ", quoted(reading.labels[state.token + 1]),
      `: ${number(Math.exp(-loss))}.`];
    $("#actual").replaceChildren(...(state.token + 1 < T ? goesOn() : ["Here the text ends."]));
  }

  // ---- The map: one pixel for each pair; what comes later stays transparent, and the hatching
  // shows through.
  const canvas = $("#map canvas");

  // The colour of each weight n / 255, as a little-endian pixel: alpha, blue, green, red.
  function shades() {
    const [ink, paper] = [colour("--weight"), colour("--paper")];
    return Array.from({ length: 256 }, (_, n) => {
      const a = darkness(n / 255);
      const [r, g, b] = ink.map((value, k) => Math.round(value * a + paper[k] * (1 - a)));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
  }

  function paintMap(half) {
    canvas.width = canvas.height = T;
    const picture = new ImageData(T, T), all = shades();
    const pixels = new Uint32Array(picture.data.buffer);
    for (let i = 0, k = 0; i < T; i++)
      for (let j = 0; j <= i; j++) pixels[i * T + j] = all[Math.ceil(half[k++] * 255 - 1e-4)];
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.setAttribute("aria-label", `Weights of ${T} by ${T} tokens. ${whichHead()}`);
  }

  function paintCross() {
    const line = $("#map-line");
    line.className = state.ahead ? "column" : "row";
    line.style.setProperty("--at", `${(100 * state.token) / T}%`);
    line.style.setProperty("--size", `${100 / T}%`);
  }

  function pair(event) {
    const place = canvas.getBoundingClientRect();
    const at = (x, size) => Math.min(T - 1, Math.max(0, Math.floor((x / size) * T)));
    const down = at(event.clientY - place.top, place.height);
    return [down, at(event.clientX - place.left, place.width)];
  }

  function read([i, j]) {
    const weight = j > i ? "the future" : number(weightsOf(i, chosen(), false)[j]);
    const name = (n) => [quoted(reading.labels[n]), ` (token ${n + 1})`];
    $("#map-reading").replaceChildren(...name(i), " → ", ...name(j), `: ${weight}`);
  }
  canvas.addEventListener("pointermove", (event) => read(pair(event)));
  canvas.addEventListener("click", (event) => {
    const [i, j] = pair(event);
    read([i, j]); // a finger does not move before it taps
    select({ token: state.ahead ? j : i, held: true });
  });

  // ---- All heads, small: each pixel the largest weight of its block, drawn one after the other
  // while nothing else happens.
  const grid = $("#heads"), thumbnails = [];

  function makeGrid() {
    grid.style.setProperty("--heads", H);
    grid.append(make("span"), ...range(ALL, H).map((h) => make("span", {}, `head ${h + 1}`)));
    for (const layer of range(ALL, L)) {
      const window = data.windows[layer];
      const seen = window ? [make("small", {}, `window ${window}`)] : [];
      const side = { class: "side", "data-layer": layer };
      grid.append(make("span", side, `layer ${layer + 1}`, ...seen));
      for (const head of range(ALL, H)) {
        const name = `layer ${layer + 1}, head ${head + 1}`;
        const button = make("button", { "aria-label": name, "aria-pressed": false },
          make("canvas"), make("small"), make("small"));
        button.addEventListener("click", () => select({ layer, head }));
        const cell = grid.appendChild(make("div", { "data-head": `${layer}.${head}` }, button));
        thumbnails.push({ cell, button, layer, head });
      }
    }
  }

  function paintThumbnail({ button, layer, head }) {
    const half = reading.map(layer, head), size = Math.min(T, 64);
    const [picture, bits, back] = button.children;
    bits.textContent = `${reading.entropy[layer][head].toFixed(1)} bits`;
    back.textContent = `${reading.distance[layer][head].toFixed(1)} back`;
    const largest = new Float32Array(size * size);
    const block = Array.from({ length: T }, (_, n) => Math.floor((n * size) / T));
    for (let i = 0, k = 0; i < T; i++)
      for (let j = 0, row = block[i] * size; j <= i; j++, k++)
        if (half[k] > largest[row + block[j]]) largest[row + block[j]] = half[k];
    const ink = colour("--weight"), pixels = new ImageData(size, size);
    largest.forEach((weight, n) => pixels.data.set([...ink, 255 * darkness(weight)], 4 * n));
    picture.width = picture.height = size;
    picture.getContext("2d").putImageData(pixels, 0, 0);
  }

  let waiting = [];
  const soon = (work) => setTimeout(() => work({ timeRemaining: () => 8 }), 16);
  const later = window.requestIdleCallback ?? soon; // Safari has none

  function paintWaiting(deadline) {
    do paintThumbnail(waiting.shift()); while (waiting.length && deadline.timeRemaining() > 4);
    if (waiting.length) later(paintWaiting);
    else grid.dataset.drawn = "all";
  }

  function paintThumbnails() {
    const idle = !waiting.length;
    grid.dataset.drawn = "";
    waiting = [...thumbnails];
    if (idle) later(paintWaiting);
  }

  // ---- Choosing
  const layerBox = $("#layer"), headBox = $("#head");
  for (const n of range(ALL, L)) layerBox.append(make("option", { value: n }, `${n + 1}`));
  for (const n of range(ALL, H)) headBox.append(make("option", { value: n }, `${n + 1}`));
  layerBox.append(make("option", { value: ALL }, "all, on average"));
  headBox.append(make("option", { value: ALL }, "all, on average"));
  headBox.append(make("option", { value: ROLLOUT }, "rollout"));

  function select(changes) {
    const before = { ...state };
    Object.assign(state, changes);
    const now = chosen();
    const weights = weightsOf(state.token, now, state.ahead);
    paintTokens(weights);
    paintSentence(weights);
    paintCross();
    if (before.token !== state.token) paintNext();
    if (before.layer !== state.layer || before.head !== state.head) paintHead(now);
    for (const listener of listeners) listener();
  }

  function paintHead(now) {
    const { layer, head } = state;
    paintMap(now);
    [layerBox.value, headBox.value] = [layer, head];
    for (const { button, ...own } of thumbnails)
      button.setAttribute("aria-pressed", own.layer === layer && own.head === head);
    const measured = () => `Layer ${layer + 1}, head ${head + 1}: ` +
      `${reading.entropy[layer][head].toFixed(1)} bits, ` +
      `${reading.distance[layer][head].toFixed(1)} tokens back`;
    const one = layer >= 0 && head >= 0;
    $("#map-title").textContent = one ? measured() : whichHead().replace(/,$/, "");
  }

  layerBox.addEventListener("change", () => select({ layer: Number(layerBox.value) }));
  headBox.addEventListener("change", () => select({ head: Number(headBox.value) }));
  const radios = document.querySelectorAll('[name="direction"]');
  for (const radio of radios)
    radio.addEventListener("change", () => select({ ahead: radio.value === "ahead" }));

  const tokenAt = (event) => event.target.closest("[data-n]");
  box.addEventListener("pointerover", (event) => {
    if (tokenAt(event) && !state.held && event.pointerType === "mouse")
      select({ token: Number(tokenAt(event).dataset.n) });
  });
  box.addEventListener("click", (event) => {
    if (!tokenAt(event)) return;
    const token = Number(tokenAt(event).dataset.n);
    select({ token, held: !(state.held && token === state.token) });
    tokens[token].focus({ preventScroll: true });
  });

  const within = (n, count) => (n + count) % count;
  const token = (n) => ({ token: Math.min(T - 1, Math.max(0, n)), held: true });
  const right = () => (reading.direction === "rtl" ? -1 : 1);
  const KEYS = {
    ArrowRight: () => token(state.token + right()),
    ArrowLeft: () => token(state.token - right()),
    Home: () => token(0),
    End: () => token(T - 1),
    ArrowDown: () => ({ head: within(Math.max(-1, state.head) + 1, H) }),
    ArrowUp: () => ({ head: within(Math.max(0, state.head) - 1, H) }),
    "]": () => ({ layer: within(state.layer + 1, L) }),
    "[": () => ({ layer: within(Math.max(0, state.layer) - 1, L) }),
    Escape: () => ({ held: false }),
    Enter: () => ({ held: !state.held }),
    " ": () => ({ held: !state.held }),
  };
  box.addEventListener("keydown", (event) => {
    const { key, metaKey, ctrlKey, altKey } = event;
    // Some keyboards need AltGr for brackets.
    if (metaKey || ((ctrlKey || altKey) && !"[]".includes(key)) || !KEYS[key]) return;
    select(KEYS[key]());
    event.preventDefault();
    tokens[state.token].focus();
  });

  // ---- Begin

  // Shows a reading, and one of its tokens: the last one, or that of the choice.
  function open(next, choice = {}) {
    reading = next;
    T = reading.labels.length;
    average = once(averageOf);
    strongest = Math.max(1, ...reading.losses.map((loss) => loss ?? 0));
    $("#model").textContent = `${data.model} · ${L} layers × ${H} heads · ${T} tokens`;
    $("#loss-most").textContent = `0 to ${strongest.toFixed(1)} nats`;
    layTokens();
    Object.assign(state, { token: T - 1 }, choice);
    for (const radio of radios) radio.checked = (radio.value === "ahead") === state.ahead;
    paintAll();
    box.scrollTop = box.scrollHeight * (state.token + 1) / T - box.clientHeight;
  }

  function paintAll() {
    [strong] = colour("--strong");
    shown.fill(NaN);
    select({});
    paintNext();
    paintHead(chosen());
    paintThumbnails();
  }

  // The head in which the last token looks most clearly at another one.
  function clearest({ map, labels: { length: T } }) {
    const most = thumbnails.map(({ layer, head }) =>
      Math.max(...map(layer, head).subarray(start(T - 1), start(T) - 1)));
    const { layer, head } = thumbnails[most.indexOf(Math.max(...most))];
    return { layer, head };
  }

  makeGrid();
  $("#note").textContent = data.note;
  onTheme(paintAll);
  return {
    state, select, open, listeners, clearest, paintNext,
    get reading() { return reading; },
  };
})();

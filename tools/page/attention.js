// The first tab: a text, its tokens, and what each head looks at. Layers, heads and tokens count from 0 here, and from 1 in words.
"use strict";
{
  const { labels, layers: L, heads: H } = data;
  const T = labels.length;
  const ALL = -1, ROLLOUT = -2; // in place of the number of a head; ALL also of a layer
  const rtl = data.direction === "rtl";
  const flat = data.entropy.flat();
  const clearest = flat.indexOf(Math.min(...flat)); // begin with the head that points most clearly
  const state = { token: T - 1, layer: Math.floor(clearest / H), head: clearest % H, ahead: false, held: false };

  // ---- Weights: the causal half, row after row; row i has i + 1 of them. Decoded when they are first needed.
  const start = (i) => (i * (i + 1)) / 2;
  const decoded = new Map();

  function bytes(source) {
    if (!decoded.has(source)) {
      const text = atob(source), found = new Uint8Array(text.length);
      for (let k = 0; k < found.length; k++) found[k] = text.charCodeAt(k);
      decoded.set(source, found);
    }
    return decoded.get(source);
  }

  const averages = new Map();

  // The weights that are chosen, as {half, scale}: weight = half[k] * scale.
  function chosen(layer = state.layer, head = state.head) {
    if (head === ROLLOUT) return { half: bytes(data.rollout[layer === ALL ? L - 1 : layer]), scale: 1 / 255 };
    if (layer !== ALL && head !== ALL) return { half: bytes(data.maps[layer][head]), scale: 1 / 255 };
    const name = `${layer} ${head}`;
    if (!averages.has(name)) {
      const of = data.maps.filter((_, l) => layer === ALL || l === layer).flatMap((maps) => maps.filter((_, h) => head === ALL || h === head));
      const sum = new Float32Array(start(T));
      for (const half of of.map(bytes)) for (let k = 0; k < sum.length; k++) sum[k] += half[k];
      averages.set(name, { half: sum, scale: 1 / 255 / of.length });
    }
    return averages.get(name);
  }

  // How much token i looks at each token, or how much each looks at it.
  function weightsOf(i, { half, scale }, ahead) {
    const found = new Float64Array(T);
    if (ahead) for (let j = i; j < T; j++) found[j] = half[start(j) + i] * scale;
    else for (let j = 0; j <= i; j++) found[j] = half[start(i) + j] * scale;
    return found;
  }

  // ---- Tokens
  const most = Math.max(1, ...data.losses.map((loss) => loss ?? 0));
  const box = $("#tokens");
  box.dir = data.direction;
  let run = null; // neighbours that are written in the same direction
  const tokens = labels.map((label, n) => {
    const loss = data.losses[n];
    const token = make("span", {
      role: "option", id: `token-${n}`, "data-n": n, tabindex: -1, "aria-selected": false,
      "aria-label": `${n + 1}: ${label}${loss === null ? "" : `, loss ${loss.toFixed(2)}`}`,
    }, label);
    token.style.setProperty("--loss-share", loss === null ? 0 : Math.min(1, loss / most).toFixed(3));
    token.classList.toggle("blank", /^[·⏎⇥]+$/.test(label));
    if (run?.dir !== data.directions[n] || data.breaks[n - 1]) run = box.appendChild(make("bdi", { dir: data.directions[n] }));
    run.append(token);
    if (data.breaks[n]) box.append(make("br"));
    return token;
  });
  const shown = new Float64Array(T).fill(NaN);
  let marked = null, strong = 1; // the weight above which dark text on the background could not be read, or light text

  function paintTokens(weights) {
    for (let n = 0; n < T; n++) {
      if (weights[n] === shown[n]) continue; // touch only what changes
      shown[n] = weights[n];
      tokens[n].style.setProperty("--weight-share", darkness(weights[n]).toFixed(3));
      tokens[n].dataset.weight = weights[n].toFixed(5);
      tokens[n].dataset.reads = weights[n] ? number(weights[n]) : "0";
      tokens[n].classList.toggle("strong", weights[n] > strong);
    }
    if (marked !== tokens[state.token]) {
      marked?.setAttribute("aria-selected", false);
      if (marked) marked.tabIndex = -1;
      marked = tokens[state.token];
      marked.setAttribute("aria-selected", true);
      marked.tabIndex = 0;
    }
    marked.classList.toggle("held", state.held);
    box.dataset.held = state.held;
  }

  // ---- In words
  const quoted = (label) => make("span", {}, "“", make("bdi", {}, label), "”");
  const away = (n) => (n === 0 ? "" : n < 0 ? ` ${-n} back` : ` ${n} later`);

  function whichHead() {
    if (state.head === ROLLOUT) return `After ${state.layer === ALL ? "all layers" : `layer ${state.layer + 1}`}, by attention rollout,`;
    const layer = state.layer === ALL ? "On average over all layers" : `In layer ${state.layer + 1}`;
    return `${layer}, ${state.head === ALL ? "on average over its heads" : `head ${state.head + 1}`},`;
  }

  function paintSentence(weights) {
    const best = [...weights.keys()].filter((n) => weights[n] > 0).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
    const parts = [`${whichHead()} `, make("b", {}, quoted(labels[state.token]))];
    parts.push(best.length ? (state.ahead ? " is looked at most by " : " looks most at ") : " is looked at by nobody");
    best.forEach((n, k) => {
      if (k) parts.push(k === best.length - 1 ? " and " : ", ");
      if (n === state.token) parts.push("itself");
      else parts.push(quoted(labels[n]), away(n - state.token));
      parts.push(` (${number(weights[n])})`);
    });
    const [label, p] = data.next[state.token][0];
    parts.push(". After it, the model expects ", make("b", {}, quoted(label)), ` (${number(p)}).`);
    $("#sentence").replaceChildren(...parts);
  }

  function paintNext() {
    const rows = data.next[state.token].map(([label, p], n) => {
      const row = make("li", { "data-p": p }, make("bdi", {}, label), make("i", {}), make("span", {}, number(p)));
      row.style.setProperty("--p", p);
      row.classList.toggle("came", n === data.came[state.token]);
      return row;
    });
    $("#next").replaceChildren(...rows);
    const came = state.token + 1 < T;
    $("#actual").replaceChildren(...(came
      ? ["The text goes on with ", quoted(labels[state.token + 1]), `: ${number(Math.exp(-data.losses[state.token + 1]))}.`]
      : ["Here the text ends."]));
  }

  // ---- The map: one pixel for each pair; what comes later stays transparent, and the hatching shows through.
  const canvas = $("#map canvas");
  canvas.width = canvas.height = T;

  function paintMap({ half, scale }) {
    const [r, g, b] = colour("--weight");
    const [pr, pg, pb] = colour("--paper");
    const picture = new ImageData(T, T);
    const pixels = new Uint32Array(picture.data.buffer); // little-endian: alpha, blue, green, red
    const shades = Array.from({ length: 256 }, (_, n) => {
      const a = darkness(n / 255);
      const mix = (ink, paper) => Math.round(ink * a + paper * (1 - a));
      return ((255 << 24) | (mix(b, pb) << 16) | (mix(g, pg) << 8) | mix(r, pr)) >>> 0;
    });
    for (let i = 0, k = 0; i < T; i++)
      for (let j = 0; j <= i; j++) pixels[i * T + j] = shades[Math.ceil(half[k++] * scale * 255 - 1e-4)];
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.setAttribute("aria-label", `Weights of ${T} by ${T} tokens. ${whichHead()}`);
  }

  function paintCross() {
    const line = state.ahead ? $("#map-column") : $("#map-row");
    $("#map-row").hidden = state.ahead;
    $("#map-column").hidden = !state.ahead;
    line.style.setProperty("--at", `${(100 * state.token) / T}%`);
    line.style.setProperty("--size", `${100 / T}%`);
  }

  function pair(event) {
    const place = canvas.getBoundingClientRect();
    const at = (x, size) => Math.min(T - 1, Math.max(0, Math.floor((x / size) * T)));
    return [at(event.clientY - place.top, place.height), at(event.clientX - place.left, place.width)];
  }

  function read([i, j]) {
    const weight = j > i ? "the future" : number(weightsOf(i, chosen(), false)[j]);
    $("#map-reading").replaceChildren(quoted(labels[i]), ` (token ${i + 1}) → `, quoted(labels[j]), ` (token ${j + 1}): ${weight}`);
  }
  canvas.addEventListener("pointermove", (event) => read(pair(event)));
  canvas.addEventListener("click", (event) => {
    const [i, j] = pair(event);
    read([i, j]); // a finger does not move before it taps
    select({ token: state.ahead ? j : i, held: true });
  });

  // ---- All heads, small: each pixel the largest weight of its block, drawn one after the other while nothing else happens.
  const size = Math.min(T, 64);
  const grid = $("#heads");
  grid.style.setProperty("--heads", H);
  const thumbnails = [];
  grid.append(make("span"), ...data.maps[0].map((_, head) => make("span", {}, `head ${head + 1}`)));
  for (let layer = 0; layer < L; layer++) {
    grid.append(make("span", { class: "side" }, `layer ${layer + 1}`, ...(data.windows[layer] ? [make("small", {}, `window ${data.windows[layer]}`)] : [])));
    for (let head = 0; head < H; head++) {
      const button = make("button", { "aria-label": `layer ${layer + 1}, head ${head + 1}`, "aria-pressed": false },
        make("canvas", { width: size, height: size }),
        make("small", {}, `${data.entropy[layer][head].toFixed(1)} bits`),
        make("small", {}, `${data.distance[layer][head].toFixed(1)} back`));
      button.addEventListener("click", () => select({ layer, head }));
      grid.append(button);
      thumbnails.push({ button, layer, head });
    }
  }

  function paintThumbnail({ button, layer, head }) {
    const half = bytes(data.maps[layer][head]);
    const largest = new Uint8Array(size * size);
    const block = Array.from({ length: T }, (_, n) => Math.floor((n * size) / T));
    for (let i = 0, k = 0; i < T; i++)
      for (let j = 0, row = block[i] * size; j <= i; j++, k++) if (half[k] > largest[row + block[j]]) largest[row + block[j]] = half[k];
    const [r, g, b] = colour("--weight");
    const picture = new ImageData(size, size);
    largest.forEach((byte, n) => picture.data.set([r, g, b, 255 * darkness(byte / 255)], 4 * n));
    button.firstChild.getContext("2d").putImageData(picture, 0, 0);
  }

  let waiting = [];
  function paintWaiting(deadline) {
    do paintThumbnail(waiting.shift()); while (waiting.length && deadline.timeRemaining() > 4);
    if (waiting.length) later(paintWaiting);
    else grid.dataset.drawn = "all";
  }
  const later = window.requestIdleCallback ?? ((work) => setTimeout(() => work({ timeRemaining: () => 8 }), 16)); // Safari has none

  function paintThumbnails() {
    const idle = !waiting.length;
    waiting = [...thumbnails];
    if (idle) later(paintWaiting);
  }

  // ---- Choosing
  const layerBox = $("#layer"), headBox = $("#head");
  for (let n = 0; n < L; n++) layerBox.append(make("option", { value: n }, `${n + 1}`));
  for (let n = 0; n < H; n++) headBox.append(make("option", { value: n }, `${n + 1}`));
  layerBox.append(make("option", { value: ALL }, "all, on average"));
  headBox.append(make("option", { value: ALL }, "all, on average"), make("option", { value: ROLLOUT }, "rollout"));

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
  }

  function paintHead(now) {
    paintMap(now);
    [layerBox.value, headBox.value] = [state.layer, state.head];
    for (const { button, layer, head } of thumbnails) {
      const on = layer === state.layer && head === state.head;
      if ((button.getAttribute("aria-pressed") === "true") !== on) button.setAttribute("aria-pressed", on);
    }
    const one = state.layer >= 0 && state.head >= 0;
    $("#map-title").textContent = one
      ? `Layer ${state.layer + 1}, head ${state.head + 1}: ${data.entropy[state.layer][state.head].toFixed(1)} bits, ${data.distance[state.layer][state.head].toFixed(1)} tokens back`
      : whichHead().replace(/,$/, "");
  }

  layerBox.addEventListener("change", () => select({ layer: Number(layerBox.value) }));
  headBox.addEventListener("change", () => select({ head: Number(headBox.value) }));
  for (const radio of document.querySelectorAll('[name="direction"]'))
    radio.addEventListener("change", () => select({ ahead: radio.value === "ahead" }));

  const tokenAt = (event) => event.target.closest("[data-n]");
  box.addEventListener("pointerover", (event) => {
    if (tokenAt(event) && !state.held && event.pointerType === "mouse") select({ token: Number(tokenAt(event).dataset.n) });
  });
  box.addEventListener("click", (event) => {
    if (!tokenAt(event)) return;
    const token = Number(tokenAt(event).dataset.n);
    select({ token, held: !(state.held && token === state.token) });
    tokens[token].focus({ preventScroll: true });
  });

  const within = (n, count) => (n + count) % count;
  const KEYS = {
    ArrowRight: () => ({ token: Math.min(T - 1, Math.max(0, state.token + (rtl ? -1 : 1))) }),
    ArrowLeft: () => ({ token: Math.min(T - 1, Math.max(0, state.token + (rtl ? 1 : -1))) }),
    Home: () => ({ token: 0 }), End: () => ({ token: T - 1 }),
    ArrowDown: () => ({ head: within(Math.max(-1, state.head) + 1, H) }), ArrowUp: () => ({ head: within(Math.max(0, state.head) - 1, H) }),
    "]": () => ({ layer: within(state.layer + 1, L) }), "[": () => ({ layer: within(Math.max(0, state.layer) - 1, L) }),
  };
  box.addEventListener("keydown", (event) => {
    if (event.metaKey || ((event.ctrlKey || event.altKey) && !"[]".includes(event.key))) return; // some keyboards need AltGr for brackets
    if (event.key === "Escape") return select({ held: false });
    if (event.key === "Enter" || event.key === " ") select({ held: !state.held });
    else if (KEYS[event.key]) select(KEYS[event.key]().token === undefined ? KEYS[event.key]() : { ...KEYS[event.key](), held: true });
    else return;
    event.preventDefault();
    tokens[state.token].focus();
  });

  // ---- Begin
  $("#model").textContent = `${data.model} · ${L} layers × ${H} heads · ${T} tokens`;
  $("#note").textContent = data.note;
  $("#loss-most").textContent = `0 to ${most.toFixed(1)} nats`;
  function paintAll() {
    [strong] = colour("--strong");
    shown.fill(NaN);
    select({});
    paintHead(chosen());
    paintThumbnails();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
  paintAll();
  paintNext();
  box.scrollTop = box.scrollHeight; // to the last token, which is chosen
}

// The first tab: a text, its tokens, and what each head looks at. Layers, heads and tokens count
// from 0 here, and from 1 in words. view is what others use of it; "chosen" is its event.
"use strict";
const view = (() => {
  const { layers: L, heads: H } = data;
  const MOST_LABELS = 24; // beside the map
  const MOST_LOOKS = 8; // heads of which is said where a token looks
  const ROLLOUT = H; // in place of the number of a head
  const state = { token: 0, layer: 0, head: 0 };
  const box = $("#tokens"), canvas = $("#map canvas"), grid = $("#heads");
  const count = (n) => [...Array(n).keys()];
  let reading, T, strongest, tokens, shade;

  function chosen() {
    const { layer, head } = state;
    return head === ROLLOUT ? reading.rollout(layer) : reading.map(layer, head);
  }

  // ---- Tokens
  function makeToken(label, n) {
    const loss = reading.losses[n];
    const said = loss === null ? "" : `, loss ${loss.toFixed(2)}`;
    return make("span", {
      role: "option", id: `token-${n}`, "data-n": n, "aria-label": `${n + 1}: ${label}${said}`,
      style: `--loss-share: ${(loss / strongest).toFixed(3)}`,
      class: reading.typed?.[n] ? "unknown" : /^[·⏎⇥]+$/.test(label) ? "blank" : "",
    }, label);
  }

  function layTokens() {
    const end = (n) => make(reading.breaks[n] ? "br" : "wbr");
    tokens = reading.labels.map(makeToken);
    box.dir = directionOf(reading.labels);
    box.replaceChildren(...tokens.flatMap((token, n) => [token, end(n)]));
    for (const [side, words] of [["rows", "looks"], ["columns", "is looked at"]])
      $(`#map-${side}`).replaceChildren(...(T > MOST_LABELS ? [words] : reading.labels)
        .map((label) => make("span", {}, make("bdi", {}, label))));
  }

  function paintTokens(weights) {
    tokens.forEach((token, n) => {
      const weight = weights[n] ?? 0; // the future has none
      token.style.setProperty("--share", darkness(weight).toFixed(4));
      token.dataset.reads = weight ? number(weight) : "0";
      token.setAttribute("aria-selected", n === state.token);
    });
    box.setAttribute("aria-activedescendant", `token-${state.token}`);
  }

  // ---- In words
  const quoted = (n) => `“${isolated(reading.labels[n])}”`;

  function whichHead() {
    const { layer, head } = state;
    return head === ROLLOUT ? `After layer ${layer + 1}, by attention rollout`
      : `In layer ${layer + 1}, head ${head + 1}`;
  }

  function paintSentence(weights) {
    const { token } = state;
    const [label, p] = reading.next(token)[0], least = Math.max(...weights) / 50;
    const looked = best(weights, 3).filter((n) => weights[n] > least);
    const parts = looked.map((n) =>
      `${n === token ? "itself" : `${quoted(n)} ${token - n} back`} (${number(weights[n])})`);
    const most = `most at ${new Intl.ListFormat("en-GB").format(parts)}`;
    $("#sentence").textContent =
      `${whichHead()}, ${quoted(token)} looks ${parts.length ? most : "at nothing"}. ` +
      `After it, the model expects “${isolated(label)}” (${number(p)}).`;
  }

  // Where the token looks in each head; of many heads, in those in which it looks most clearly.
  function paintLooks() {
    const rows = thumbnails.map(({ layer, head }) => reading.map(layer, head)[state.token]);
    const clear = best(rows.map((row) => Math.max(...row)), MOST_LOOKS);
    $("#looks-who").textContent = `${quoted(state.token)} looks most at`;
    thumbnails.forEach(({ layer, head, button, look }, n) => {
      const [most] = best(rows[n], 1), weight = rows[n][most];
      const at = most === state.token ? "itself" : isolated(reading.labels[most]);
      look.lastChild.textContent = weight ? `${at} ${number(weight)}` : "nothing";
      look.hidden = !clear.includes(n);
      for (const one of [button, look])
        one.setAttribute("aria-pressed", layer === state.layer && head === state.head);
    });
  }

  function paintNext() {
    const came = reading.came(state.token);
    const rows = reading.next(state.token).map(([label, p, id, was], n) => {
      const parts = [make("bdi", {}, label), make("i"), make("span", {}, number(p))];
      const row = id === undefined ? make("div", {}, ...parts)
        : make("button", { "data-id": id, title: "Go on with it" }, ...parts);
      const style = `--p: ${p}; --was: ${was}`;
      return make("li", { "data-p": p, style, class: n === came ? "came" : "" }, row);
    });
    $("#next").replaceChildren(...rows);
    const after = state.token + 1, p = ({ losses }) => number(Math.exp(-losses[after]));
    const was = reading.intact ? `, of the intact model ${p(reading.intact)}` : "";
    $("#actual").textContent = after === T ? "Here the text ends."
      : `The text goes on with ${quoted(after)}: ${p(reading)}${was}.`;
  }

  // ---- Maps: one pixel for each pair, or the largest weight of a block of pairs; what comes later
  // stays transparent, and the hatching shows through.

  // The colour of each weight n / 255, as a little-endian pixel: alpha, blue, green, red.
  function shades() {
    const [ink, paper] = [colour("--weight"), colour("--paper")];
    return Array.from({ length: 256 }, (_, n) => {
      const a = darkness(n / 255);
      const [r, g, b] = ink.map((value, k) => Math.round(value * a + paper[k] * (1 - a)));
      return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    });
  }

  function draw(canvas, map, size) {
    const picture = new ImageData(size, size), pixels = new Uint32Array(picture.data.buffer);
    const largest = new Float32Array(size * size), scale = size / T;
    for (let i = 0; i < T; i++)
      for (let j = 0; j <= i; j++) {
        const at = Math.floor(i * scale) * size + Math.floor(j * scale);
        largest[at] = Math.max(largest[at], map[i][j]);
        pixels[at] = shade[Math.ceil(largest[at] * 255 - 1e-4)];
      }
    canvas.width = canvas.height = size;
    canvas.getContext("2d").putImageData(picture, 0, 0);
  }

  function paintMap(map) {
    draw(canvas, map, T);
    canvas.setAttribute("aria-label", `Weights of ${T} by ${T} tokens. ${whichHead()}.`);
    $("#map-line").style = `--at: ${(100 * state.token) / T}%; --size: ${100 / T}%`;
  }

  // The pair under the pointer, in words; a click chooses its token.
  function point(event) {
    const at = (x) => Math.min(T - 1, Math.max(0, Math.floor((x / canvas.clientWidth) * T)));
    const i = at(event.offsetY), j = at(event.offsetX);
    const weight = j > i ? "the future" : number(chosen()[i][j]);
    $("#map-reading").textContent =
      `${quoted(i)} (token ${i + 1}) → ${quoted(j)} (token ${j + 1}): ${weight}`;
    if (event.type === "click") select({ token: i });
  }
  for (const type of ["pointermove", "click"]) canvas.addEventListener(type, point);

  // ---- All heads, small, drawn one after the other so that the page stays alive
  const thumbnails = []; // {layer, head, button, look}

  function makeGrid() {
    grid.style.setProperty("--heads", H);
    for (const layer of count(L)) {
      const window = data.windows[layer] ? `, window ${data.windows[layer]}` : "";
      const side = make("span", { class: "side", "data-layer": layer });
      side.append(`layer ${layer + 1}${window}`);
      const group = grid.appendChild(make("div", { class: "layer" }, side));
      for (const head of count(H)) {
        const name = `layer ${layer + 1}, head ${head + 1}`;
        const button = make("button", { "aria-label": name },
          make("span", {}, `head ${head + 1}`), make("canvas"),
          make("small"), make("small"), make("small"));
        const look = make("button", {}, make("small", {}, name), make("span"));
        for (const one of [button, look])
          one.addEventListener("click", () => select({ layer, head }));
        group.append(make("div", { "data-head": `${layer}.${head}` }, button));
        $("#looks").append(look);
        thumbnails.push({ layer, head, button, look });
      }
    }
  }

  async function paintThumbnails() {
    const asked = reading;
    for (const { layer, head, button } of thumbnails) {
      await rest();
      if (asked !== reading) return;
      const [, picture, bits, back, copied] = button.children, map = reading.map(layer, head);
      const measures = reading.measures(layer, head);
      draw(picture, map, Math.min(T, 64));
      bits.textContent = `${measures[0].toFixed(1)} bits`;
      back.textContent = `${measures[1].toFixed(1)} back`;
      copied.textContent = `${number(copying(map, reading.ids))} copied`;
    }
  }

  // ---- Choosing
  const layerBox = $("#layer"), headBox = $("#head");
  layerBox.append(...count(L).map((n) => make("option", { value: n }, n + 1)));
  headBox.append(...count(H).map((n) => make("option", { value: n }, n + 1)),
    make("option", { value: ROLLOUT }, "rollout"));

  function select(changes) {
    Object.assign(state, changes);
    const map = chosen(), weights = map[state.token];
    paintTokens(weights);
    paintSentence(weights);
    paintLooks();
    paintNext();
    paintMap(map);
    [layerBox.value, headBox.value] = [state.layer, state.head];
    dispatchEvent(new Event("chosen"));
  }

  const reveal = () => { box.scrollTop = tokens[state.token].offsetTop - box.clientHeight / 2; };

  layerBox.addEventListener("change", () => select({ layer: Number(layerBox.value) }));
  headBox.addEventListener("change", () => select({ head: Number(headBox.value) }));
  box.addEventListener("click", ({ target }) => {
    if (target.dataset.n) select({ token: Number(target.dataset.n) });
  });

  const token = (n) => ({ token: Math.min(T - 1, Math.max(0, n)) });
  const right = () => (box.dir === "rtl" ? -1 : 1);
  const KEYS = {
    ArrowRight: () => token(state.token + right()),
    ArrowLeft: () => token(state.token - right()),
    Home: () => token(0),
    End: () => token(T - 1),
    ArrowDown: () => ({ head: (state.head + 1) % H }),
    ArrowUp: () => ({ head: (state.head - 1 + H) % H }),
    "]": () => ({ layer: (state.layer + 1) % L }),
    "[": () => ({ layer: (state.layer - 1 + L) % L }),
  };
  box.addEventListener("keydown", (event) => {
    const { key, metaKey, ctrlKey, altKey } = event;
    // Some keyboards need AltGr for brackets.
    if (metaKey || ((ctrlKey || altKey) && !"[]".includes(key)) || !KEYS[key]) return;
    event.preventDefault();
    select(KEYS[key]());
    reveal();
  });

  // ---- Begin
  // Shows a reading, and one of its tokens: the last one, or that of the choice.
  function open(next, choice = {}) {
    reading = next;
    T = reading.labels.length;
    strongest = Math.max(1, ...(reading.intact ?? reading).losses); // the same with changes
    shade = shades();
    $("#model").textContent = `${data.model} · ${L} layers × ${H} heads · ${T} tokens`;
    $("#loss-most").textContent = `0 to ${strongest.toFixed(1)}`;
    layTokens();
    select({ token: T - 1, ...choice });
    reveal();
    paintThumbnails();
  }

  // The head in which a token looks most clearly at another one.
  function clearest({ map, labels }, token = labels.length - 1) {
    const looks = ({ layer, head }) => Math.max(...map(layer, head)[token].slice(0, -1));
    const [{ layer, head }] = thumbnails.toSorted((a, b) => looks(b) - looks(a));
    return { layer, head };
  }

  makeGrid();
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", () => open(reading, { token: state.token }));
  return { state, select, open, clearest, get reading() { return reading; } };
})();

// A view as an address, a picture, in large type. In an address all counts from 1:
// #layer=2&head=1&token=7, and on a live page also text=... and 1.2=off (of layer 1, head 2).
"use strict";
{
  const { layers: L, heads: H } = data;
  const NAMES = { [view.ALL]: "all", [view.ROLLOUT]: "rollout" };
  const PART = /^(\d+)\.(\d+|mlp)$/;

  function address() {
    const { layer, head, token, ahead } = view.state;
    const name = (n) => NAMES[n] ?? n + 1;
    const parts = { layer: name(layer), head: name(head), token: token + 1 };
    if (ahead) parts.direction = "ahead";
    const { text, changes = {} } = view.live?.state ?? {};
    for (const [key, how] of Object.entries(changes))
      parts[key.replace(/\d+/g, (n) => Number(n) + 1)] = how;
    if (text !== undefined) parts.text = text;
    return `#${new URLSearchParams(parts)}`;
  }

  // Opens the view of the address; what is wrong in it is left out.
  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const choice = { ahead: asked.get("direction") === "ahead" }, changes = {};
    for (const [name, count, words] of [["layer", L, ["all"]], ["head", H, ["all", "rollout"]]]) {
      const value = asked.get(name), n = Number(value) - 1;
      if (words.includes(value)) choice[name] = -1 - words.indexOf(value);
      else if (value && Number.isInteger(n) && n >= 0 && n < count) choice[name] = n;
    }
    for (const [key, how] of asked) {
      const [, layer, part] = key.match(PART) ?? [];
      const known = layer >= 1 && layer <= L && (part === "mlp" || (part >= 1 && part <= H));
      if (known && (how === "off" || (how in REPLACED && part !== "mlp")))
        changes[`${layer - 1}.${part === "mlp" ? part : part - 1}`] = how;
    }
    const text = asked.get("text");
    if (view.live && (text || Object.keys(changes).length)) view.live.open(text, changes, choice);
    else view.open(view.reading, choice);
    const token = Math.min(view.reading.labels.length, Math.floor(asked.get("token"))) - 1;
    if (token >= 0) view.select({ token, held: true });
  }
  addEventListener("hashchange", follow);
  if (location.hash.length > 1) follow();

  // ---- A picture: the map, with its tokens, and the sentence above it

  function svg() {
    const { labels } = view.reading, T = labels.length;
    const CELL = 18, EDGE = 150, SIZE = EDGE + T * CELL + 20;
    const [ink, paper] = ["--ink", "--paper"].map((name) => `rgb(${colour(name).join(" ")})`);
    const words = $("#sentence").textContent.match(/.{1,70}(\s|$)|\S+/g);
    const label = (text, turn) => make("text", { "text-anchor": "end", transform: turn }, text);
    const at = (n) => EDGE + (n + 0.7) * CELL;
    return make("svg", {
      viewBox: `0 0 ${Math.max(SIZE, 620)} ${SIZE + 20 * words.length}`,
      "font-family": "monospace", "font-size": 13, fill: ink,
    },
    make("rect", { width: "100%", height: "100%", fill: paper }),
    ...words.map((line, n) => make("text", { x: 20, y: 30 + 20 * n, "font-family": "sans-serif" },
      line)),
    make("g", { transform: `translate(0 ${20 * words.length})` },
      make("image", {
        x: EDGE, y: EDGE, width: T * CELL, height: T * CELL, style: "image-rendering: pixelated",
        href: $("#map canvas").toDataURL(),
      }),
      ...labels.map((text, n) => label(text, `translate(${EDGE - 6} ${at(n)})`)),
      ...labels.map((text, n) => label(text, `translate(${at(n)} ${EDGE - 6}) rotate(90)`))));
  }

  function save(name, href) {
    make("a", { download: name, href }).click();
  }

  function drawing() {
    const picture = svg();
    const [, , width, height] = picture.getAttribute("viewBox").split(" ");
    const text = new XMLSerializer().serializeToString(change(picture, { width, height }));
    return `data:image/svg+xml,${encodeURIComponent(text)}`;
  }

  async function png() {
    const image = new Image();
    image.src = drawing();
    await image.decode();
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL();
  }

  $("#save-svg").addEventListener("click", () => save("attention.svg", drawing()));
  $("#save-png").addEventListener("click", async () => save("attention.png", await png()));
  $("#link").addEventListener("click", async () => {
    history.replaceState(null, "", address());
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    $("#link").textContent = "Link copied";
    setTimeout(() => { $("#link").textContent = "Copy link"; }, 2000);
  });

  // ---- Large type, for a lecture: P, or the button; Escape ends it

  function talk(on = !document.body.classList.contains("talk")) {
    document.body.classList.toggle("talk", on);
    if (on) document.documentElement.requestFullscreen?.().catch(() => {});
    else if (document.fullscreenElement) document.exitFullscreen();
  }
  $("#large").addEventListener("click", () => talk());
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey) return;
    if (event.key.toLowerCase() === "p") talk();
    if (event.key === "Escape") talk(false);
  });
  document.addEventListener("fullscreenchange", () => {
    if (!document.fullscreenElement) talk(false);
  });
}

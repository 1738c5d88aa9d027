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

  function picture() {
    const { labels } = view.reading, T = labels.length;
    const longest = Math.max(...labels.map((label) => label.length));
    const cell = Math.max(18, Math.min(36, 500 / T)), edge = 20 + 8 * longest, size = T * cell;
    const lines = $("#sentence").textContent.match(/.{1,70}(\s|$)|\S+/g);
    const width = Math.max(edge + size + 20, 620), top = 20 * lines.length + 30 + edge;
    const [ink, fill] = ["--ink", "--paper"].map((name) => `rgb(${colour(name).join(" ")})`);
    const at = (n) => (n + 0.5) * cell + 4;
    const text = (content, x, y, more) => make("text", { x, y, ...more }, content);
    const font = { "font-family": "monospace", "font-size": 13, fill: ink };
    return make("svg", { width, height: top + size + 20, ...font },
      make("rect", { width: "100%", height: "100%", fill }),
      ...lines.map((line, n) => text(line, 20, 30 + 20 * n, { "font-family": "sans-serif" })),
      make("g", { transform: `translate(${edge} ${top})` },
        make("image", {
          width: size, height: size, style: "image-rendering: pixelated",
          href: $("#map canvas").toDataURL(),
        }),
        ...labels.map((label, n) => text(label, -6, at(n), { "text-anchor": "end" })),
        ...labels.map((label, n) => text(label, 6, at(n), { transform: "rotate(-90)" }))));
  }

  function svg() {
    const text = new XMLSerializer().serializeToString(picture());
    return `data:image/svg+xml,${encodeURIComponent(text)}`;
  }

  async function png() {
    const image = make("img", { src: svg() });
    await image.decode();
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL();
  }

  function save(name, href) {
    make("a", { download: name, href }).click();
  }

  $("#save-svg").addEventListener("click", () => save("attention.svg", svg()));
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
    const typed = event.target.matches?.("input, textarea, select");
    if (typed || event.ctrlKey || event.metaKey) return;
    if (event.key.toLowerCase() === "p") talk();
    if (event.key === "Escape") talk(false);
  });
  document.addEventListener("fullscreenchange", () => {
    if (!document.fullscreenElement) talk(false);
  });
}

// A view as an address, a picture, in large type. In an address all counts from 1:
// #layer=2&head=1&token=7, and on a live page also step=7 (or all), text=... and 1.2=off (of head 2
// in layer 1).
"use strict";
{
  // Links to the repository: the folder above the page's, or what its GitHub Pages are of.
  const [, owner] = location.host.match(/^([^.]+)\.github\.io$/) ?? [];
  const repository = `https://github.com/${owner}/${location.pathname.split("/")[1]}`;
  const home = owner ? `${repository}/blob/HEAD/` : "../";
  for (const link of $$("[data-file]")) link.href = home + link.dataset.file;
  const [href, says = href] = data.other ?? [];
  if (href) $("#other").append("· ", make("a", { href }, says));

  function address() {
    const { text, changes = {} } = view.live?.state ?? {};
    const [layer, head] = ["#layer", "#head"].map((name) => $(name).selectedOptions[0].text);
    const parts = { layer, head, token: view.state.token + 1 };
    for (const [part, how] of Object.entries(changes))
      parts[part.replace(/\d+/g, (n) => Number(n) + 1)] = how;
    if (text !== undefined) [parts.text, parts.step] = [text, steps.step];
    return `#${new URLSearchParams(parts)}`;
  }

  // Opens the view of the address; what is wrong in it is left out.
  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const choice = {}, changes = {};
    for (const name of ["layer", "head"]) {
      const option = [...$(`#${name}`).options].find((own) => own.text === asked.get(name));
      if (option) choice[name] = Number(option.value);
    }
    for (const [key, how] of asked) {
      const part = key.replace(/\d+/g, (n) => n - 1);
      const possible = how === "off" || (Object.hasOwn(REPLACED, how) && !part.endsWith("mlp"));
      if (possible && $(`[data-part="${CSS.escape(part)}"]`)) changes[part] = how;
    }
    if (view.live) view.live.open(asked.get("text"), changes, choice);
    else view.open(view.reading, choice);
    const token = Math.min(view.reading.labels.length, Math.floor(asked.get("token"))) - 1;
    if (token >= 0) view.select({ token });
    const step = asked.get("step");
    if (step) steps?.go(Number(step) - 1, step === "all");
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

  const save = (download, href) => make("a", { download, href }).click();
  $("#save-svg").addEventListener("click", () => save("attention.svg", svg()));
  $("#save-png").addEventListener("click", async () => save("attention.png", await png()));
  $("#link").addEventListener("click", async () => {
    history.replaceState(null, "", address());
    const copied = await navigator.clipboard?.writeText(location.href).then(() => 1, () => 0);
    $("#link").textContent = copied ? "Link copied" : "It is in the address bar";
    setTimeout(() => { $("#link").textContent = "Copy link"; }, 2000);
  });

  // ---- Full screen, in large type (the style sheet does it): P, or the button; Escape ends it
  function enlarge() {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen?.();
  }
  $("#large").addEventListener("click", enlarge);
  addEventListener("keydown", ({ key, target, ctrlKey, metaKey }) => {
    const typed = target.matches?.("input, textarea, select") || ctrlKey || metaKey;
    if (key.toLowerCase() === "p" && !typed) enlarge();
  });
}

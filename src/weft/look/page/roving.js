/**
 * Items of a picture that are chosen by keyboard: Tab reaches one of them, arrows move, Enter and
 * Space do what a click does. A picture that is drawn anew keeps the focus.
 * @module roving
 */

const places = new Map(); // by the picture's name, the item that Tab reaches

/**
 * @param {string} name  of the picture, the same when it is drawn anew
 * @param {Element[]} items  in reading order, each with a click handler and an aria-label
 * @param {number} [columns]
 */
export function rovingItems(name, items, columns = 1) {
  const last = items.length - 1;
  const start = Math.min(places.get(name) ?? 0, last);
  const move = (from, to) => {
    if (to < 0 || to > last) return;
    places.set(name, to);
    items[from].setAttribute("tabindex", "-1");
    items[to].setAttribute("tabindex", "0");
    items[to].focus();
  };
  items.forEach((item, place) => {
    item.setAttribute("role", "button");
    item.setAttribute("tabindex", place === start ? "0" : "-1");
    item.dataset.roving = name;
    item.addEventListener("click", () => places.set(name, place));
    item.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1, Home: -place, End: last - place };
      if (event.key === "Enter" || event.key === " ") item.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      else if (event.key in steps) move(place, place + steps[event.key]);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  });
  if (document.activeElement?.dataset.roving === name) queueMicrotask(() => items[places.get(name) ?? 0]?.focus());
}

/**
 * Notices when the server cannot be reached, shows a banner, and asks again until it can.
 * @module connection
 */

import { listenUnreachable } from "./api.js";
import { offlineBanner } from "./states.js";

const ASK_EVERY_MS = 2000;

/**
 * @param {HTMLElement} place where the banner appears
 * @param {() => void} onBack called when the server answers again
 */
export function watchConnection(place, onBack) {
  let banner = null;
  const ask = async () => {
    try {
      if (!(await fetch("/health", { cache: "no-store" })).ok) throw new Error("not healthy");
    } catch {
      setTimeout(ask, ASK_EVERY_MS);
      return;
    }
    banner.remove();
    banner = null;
    onBack();
  };
  const lost = () => {
    if (banner) return;
    banner = offlineBanner();
    place.append(banner);
    setTimeout(ask, ASK_EVERY_MS);
  };
  window.addEventListener("offline", lost);
  listenUnreachable(lost);
}

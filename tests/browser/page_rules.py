"""Rules of the page's look that are checked in a browser, beside those of axe.

rule_violations(tab)     sizes and weights of text, text that is cut, contrast of text in pictures
"""

from __future__ import annotations

from tests.browser.harness import Tab

SIZES = ("12px", "14px", "16px", "20px", "28px")
WEIGHTS = ("400", "600")
MIN_CONTRAST, MIN_TARGET = 4.5, 24
RULES = """
([sizes, weights, minContrast, minTarget]) => {
  const wrong = [];
  const words = (one) => one.textContent.trim().slice(0, 30);
  const name = (one) => `${one.tagName} ${one.getAttribute("class") ?? ""} "${words(one)}"`;
  const hidden = ".visually-hidden, .offscreen, dialog";
  const isShown = (one) =>
    one.checkVisibility() && one.getBoundingClientRect().width > 1 && !one.closest(hidden);
  const isText = (child) => child.nodeType === 3 && child.textContent.trim();
  const hasText = (one) => [...one.childNodes].some(isText);
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((one) => channel(Number(one) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(getComputedStyle(document.documentElement).backgroundColor);
  for (const one of document.querySelectorAll("body *")) {
    if (!isShown(one)) continue;
    const style = getComputedStyle(one);
    const isInMath = one.closest("math");
    if (hasText(one) && !isInMath) {
      if (!sizes.includes(style.fontSize)) wrong.push(`size ${style.fontSize}: ${name(one)}`);
      if (!weights.includes(style.fontWeight))
        wrong.push(`weight ${style.fontWeight}: ${name(one)}`);
      const isCut = style.overflowX === "hidden" && one.scrollWidth > one.clientWidth + 1;
      if (isCut && !(one instanceof SVGElement)) wrong.push(`cut: ${name(one)}`);
    }
    if (one.localName === "text" && !one.closest(".similarity-cell")) {
      const [high, low] = [luminance(style.fill), ground].sort((a, b) => b - a);
      if ((high + 0.05) / (low + 0.05) < minContrast) wrong.push(`contrast: ${name(one)}`);
    }
    const box = one.getBoundingClientRect();
    const targets = "button:not(.link, .term, .skip), select, summary, input[type=range]";
    const isTarget = one.matches(targets);
    if (isTarget && box.height < minTarget - 0.5) wrong.push(`height ${box.height}: ${name(one)}`);
  }
  return [...new Set(wrong)];
}
"""


def rule_violations(tab: Tab) -> list[str]:
    """What breaks a rule now, with the element."""
    argument = [list(SIZES), list(WEIGHTS), MIN_CONTRAST, MIN_TARGET]
    found: list[str] = tab.page.evaluate(RULES, argument)
    return found

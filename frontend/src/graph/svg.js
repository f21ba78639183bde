// SVG elements made in code; text is always text.

const NS = "http://www.w3.org/2000/svg";

/**
 * @param {string} name
 * @param {Record<string, any>} [attributes] Null, undefined and false leave one out.
 * @param {...Node} children
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NS, name);
  for (const key in attributes) {
    const value = attributes[key];
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  if (children.length) element.append(...children);
  return element;
}

/** @returns {SVGElement} One line of text. */
export function svgText(content, x, y, about = {}) {
  const element = svg("text", { x, y, ...about });
  element.textContent = content;
  return element;
}
